"""Random arguments of paged kernels, for comparisons with their references."""

from collections.abc import Sequence

import torch
from torch import Tensor

from workbench.core import page_table
from workbench.core.page_table import Paged
from workbench.core.rope import Pairing


def case(
    seed: int,
    device: str,
    dtype: torch.dtype,
    contexts: Sequence[Sequence[int]],
    blocks: Sequence[int],
    questions: Sequence[int],
    recompute: float = 0.0,
    page: int = 16,
    width: int = 64,
    heads: tuple[int, int] = (4, 2),
    pairing: Pairing | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Paged, Tensor | None, Pairing]:
    """Draw arguments of `reference`, on pages in random order; masked slots are NaN.

    Request b reads the cached blocks `contexts[b]` (their lengths are `blocks`), and computes a share `recompute` of
    their tokens and a question of `questions[b]` tokens on its own pages. With `pairing`, blocks are shifted to their
    positions in the prompt.
    """
    draw = torch.Generator().manual_seed(seed)
    home: list[list[int]] = []  # pages of each cached block
    page_base = 0  # the next free page
    for length in blocks:
        count = -(-length // page)
        home.append(list(range(page_base, page_base + count)))
        page_base += count
    tables: list[list[tuple[int, int, list[int]]]] = []  # of each request: (page, shift, position of each slot)
    rows: list[list[int]] = []
    for context, question in zip(contexts, questions, strict=True):
        start = 0
        table: list[tuple[int, int, list[int]]] = []
        mine: list[int] = []
        for block in context:
            fresh = torch.rand(blocks[block], generator=draw) < recompute
            mine += (start + fresh.nonzero()[:, 0]).tolist()
            for i, p in enumerate(home[block]):
                inside = range(i * page, min((i + 1) * page, blocks[block]))
                at = [page_table.INVALID_POS if fresh[t] else start + t for t in inside]
                table.append((p, start, at + [page_table.INVALID_POS] * (page - len(at))))
            start += blocks[block]
        mine += list(range(start, start + question))
        for i in range(0, len(mine), page):
            fresh_at = mine[i : i + page]
            table.append((page_base, 0, fresh_at + [page_table.INVALID_POS] * (page - len(fresh_at))))
            page_base += 1
        tables.append(table)
        rows.append(mine)
    width_p, width_r = max(map(len, tables)), max(map(len, rows))
    where = torch.randperm(page_base, generator=draw).tolist()
    empty = (0, 0, [page_table.INVALID_POS] * page)
    padded = [table + [empty] * (width_p - len(table)) for table in tables]
    positions = torch.tensor([[at for _, _, at in table] for table in padded])
    table_ = torch.tensor([[where[p] for p, _, _ in table] for table in padded])
    shifts = torch.tensor([[shift for _, shift, _ in table] for table in padded]) if pairing else None
    pool = [torch.full((heads[1], page_base * page, width), torch.nan) for _ in range(2)]
    seen = (table_[..., None] * page + torch.arange(page))[positions != page_table.INVALID_POS].unique()
    for x in pool:
        x[:, seen] = torch.randn(heads[1], len(seen), width, generator=draw)
    q = torch.randn(len(tables), heads[0], width_r, width, generator=draw)
    at_rows = torch.tensor([mine + [-1] * (width_r - len(mine)) for mine in rows])
    inv_freq = (1e4 ** (-torch.arange(0, width, 2) / width)).to(device) if pairing else None
    length = 1 + max((max(at) for at in rows if at), default=0)
    pages = Paged.of(
        table_.to(device), positions.to(device), None if shifts is None else shifts.to(device), length=length
    )
    keys, values = (x.to(device, dtype) for x in pool)
    return q.to(device, dtype), keys, values, at_rows.to(device), pages, inv_freq, pairing or "neox"
