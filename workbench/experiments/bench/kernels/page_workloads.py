"""Workloads over pages: a question's rows, rows of a share of a prompt, and batches that decode.

Inputs and their counts are as `workloads` says.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from workbench.core.page_table import INVALID_POS, Paged
from workbench.experiments.bench import baselines
from workbench.experiments.bench.kernels import workloads
from workbench.experiments.bench.kernels.variants import Variant
from workbench.experiments.bench.kernels.workloads import DEVICE, KernelWorkload, frequencies, numbers, ours


def questions(against: list[str], variants: Sequence[Variant], unit: int = 1024) -> Iterator[KernelWorkload]:
    """Yield 50 rows over a long cache, with and without shifted blocks; a batch that decodes over a shared cache."""
    heads, kv_heads = workloads.HEADS
    width = workloads.WIDTH
    freq = frequencies()
    cases = [(length, 1, 50, shifted) for length in (32, 128) for shifted in (True, False)]
    for length, batch, count, shifted in [*cases, (32, 8, 1, False)]:
        tokens, page = length * unit, min(workloads.PAGE, unit)
        traffic = 2 * 2 * tokens * kv_heads * width + 4 * batch * count * heads * width
        name = f"{count} rows of {batch} over {length}K{', moved' if shifted else ''}"
        shape = {"rows": count, "keys": tokens, "batch": batch, "moved": shifted, "page": page}
        work = KernelWorkload(
            name, shape | {"heads": workloads.HEADS}, 4.0 * batch * heads * count * tokens * width, traffic
        )
        for _ in workloads.sets(traffic):
            keys, values, table = cache_of(tokens, batch, count, unit if shifted else 0, page)
            q = numbers(batch, heads, count, width)
            rows = (table.positions.masked_fill(table.positions == INVALID_POS, 0).amax((1, 2))[:, None]).long()
            rows = rows - count + 1 + torch.arange(count, device=DEVICE)
            work.enter_ours("question_attention", variants, q, keys, values, rows, table, freq)
            k, v = (numbers(batch, kv_heads, tokens, width) for _ in range(2))  # baselines need a copy a request
            work.enter_torch(against, q, k, v)
        yield work
    yield in_pairs(32 * unit, 56, unit, freq)


def in_pairs(tokens: int, count: int, unit: int, freq: Tensor) -> KernelWorkload:
    """56 rows, as a question of 50 is padded to, over pages of 64 that are rerotated two by two, as a pool has them."""
    heads, kv_heads = workloads.HEADS
    width = workloads.WIDTH
    page = min(workloads.PAGE, unit) // 2
    traffic = 2 * 2 * tokens * kv_heads * width + 4 * count * heads * width
    shape = {"rows": count, "keys": tokens, "batch": 1, "moved": True, "page": page, "heads": workloads.HEADS}
    name = f"{count} rows of 1 over {tokens // unit}K, moved, pages of half the size"
    work = KernelWorkload(name, shape, 4.0 * heads * count * tokens * width, traffic)
    for _ in workloads.sets(traffic):
        keys, values, table = cache_of(tokens, 1, count, unit // 2 if unit > 16 else unit, page)
        q = numbers(1, heads, count, width)
        rows = tokens + torch.arange(count, device=DEVICE)[None]
        for label, run in (("ours", 2), ("ours, pages one by one", 1)):
            work.enter(label, ours, "question_attention", {}, q, keys, values, rows, replace(table, run=run), freq)
    return work


def decoding(against: list[str], variants: Sequence[Variant], unit: int = 1024) -> Iterator[KernelWorkload]:
    """A row of each of eight requests over a shared context of 32K and pages of their own, blocks shifted or not."""
    heads, kv_heads = workloads.HEADS
    width = workloads.WIDTH
    freq = frequencies()
    tokens, batch, page = 32 * unit, 8, min(workloads.PAGE, unit)
    pool = tokens + batch * page
    traffic = 4.0 * pool * kv_heads * width + 4.0 * batch * heads * width
    at = torch.arange(tokens + page, device=DEVICE).view(1, -1, page)
    mine = torch.arange(tokens // page, pool // page, device=DEVICE)[:, None]
    rows = torch.full((batch, 1), tokens + page - 1, device=DEVICE)
    for moved in (False, True):
        shape = {"rows": 1, "keys": tokens, "batch": batch, "moved": moved, "page": page, "heads": workloads.HEADS}
        name = f"a row of 8 over shared 32K{', moved' if moved else ''}"
        work = KernelWorkload(name, shape, 4.0 * batch * heads * tokens * width, traffic)
        shifts = block_starts(tokens // page, page, unit)[None] if moved else None
        still = torch.zeros_like(mine) if moved else None
        table = torch.arange(tokens // page, device=DEVICE)[None]
        shared = Paged.of(table, at[:, :-1], shifts, partial_pages=False)
        own = Paged.of(mine, at[:, -1:].expand(batch, -1, -1), still, partial_pages=False)
        both = None if shifts is None or still is None else torch.cat((shifts.expand(batch, -1), still), 1)
        table = torch.cat((table.expand(batch, -1), mine), 1)
        whole = Paged.of(table, at.expand(batch, -1, -1), both, partial_pages=False)
        for _ in workloads.sets(traffic):
            keys, values = (numbers(kv_heads, pool, width) for _ in range(2))
            q = numbers(batch, heads, 1, width)
            work.enter_ours("shared_attention", variants, q, keys, values, rows, shared, own, freq)
            work.enter("question_attention", ours, "question_attention", {}, q, keys, values, rows, whole, freq)
            k, v = (numbers(batch, kv_heads, tokens, width) for _ in range(2))  # baselines need a copy a request
            work.enter_torch(against, q, k, v)
        yield work


def scattered(against: list[str], variants: Sequence[Variant], unit: int = 1024) -> Iterator[KernelWorkload]:
    """Yield a share of 32K rows, drawn at random, and a question of 50 over all 32K: FusionRAG's online step."""
    heads, kv_heads = workloads.HEADS
    width = workloads.WIDTH
    tokens, count, page = 32 * unit, 50, min(workloads.PAGE, unit)
    freq = frequencies()
    for share in (0.05, 0.15, 0.30):
        recompute = int(tokens * share)
        drawn = torch.randperm(tokens - count, device=DEVICE)[:recompute].sort().values
        rows = torch.cat((drawn, torch.arange(tokens - count, tokens, device=DEVICE)))
        traffic = 4.0 * tokens * kv_heads * width + 4.0 * len(rows) * heads * width
        seen = float((rows + 1).sum())
        shape = {"rows": len(rows), "keys": tokens, "share": share, "page": page, "heads": workloads.HEADS}
        work = KernelWorkload(f"{share:.0%} of 32K rows + 50", shape, 4 * heads * width * seen, traffic)
        for _ in workloads.sets(traffic):
            q, k, v = numbers(1, heads, len(rows), width), *(numbers(1, kv_heads, tokens, width) for _ in range(2))
            own, far = (stale_cache(tokens, rows, page, block) for block in (0, unit))
            work.enter_ours("q_sparse_attention", variants, q, *own[:2], rows[None], own[2], None)
            work.enter("ours, blocks turned", ours, "q_sparse_attention", {}, q, *far[:2], rows[None], far[2], freq)
            work.enter("ours, written in place", ours, "tile_attention", {}, q, k, v, rows[None])
            if "flex" in against:
                work.enter("flex", baselines.flex_rows, q, k, v, rows)
            if "cudnn" in against:  # torch's attention with a mask, as FusionRAG's figure 14b has it
                work.enter("sdpa, mask", baselines.masked, q, k, v, rows)
            work.enter_dense(against, numbers(1, heads, tokens, width), k, v)
        yield work


def stale_cache(tokens: int, rows: Tensor, page: int, block: int) -> tuple[Tensor, Tensor, Paged]:
    """Make the pages of a cached prompt, entries of `rows` [R] stale, and pages with the fresh ones.

    Where `block` is not 0, the prompt is made of blocks of that length that are shifted.
    """
    kv_heads = workloads.HEADS[1]
    width = workloads.WIDTH
    shared, mine = tokens // page, -(-len(rows) // page)
    at = torch.full(((shared + mine) * page,), INVALID_POS, device=DEVICE)
    at[:tokens] = torch.arange(tokens, device=DEVICE)
    at[rows] = INVALID_POS
    at[tokens : tokens + len(rows)] = rows
    table = torch.randperm(shared + mine, device=DEVICE)
    shifts = None
    if block:
        shifts = block_starts(shared + mine, page, block)[None]
        shifts[:, shared:] = 0
    keys, values = (numbers(kv_heads, (shared + mine) * page, width) for _ in range(2))
    return keys, values, Paged.of(table[None], at.view(1, -1, page), shifts, length=tokens)


def cache_of(tokens: int, batch: int, own: int, block: int, page: int) -> tuple[Tensor, Tensor, Paged]:
    """Make pages in random places: a context of `tokens` that `batch` requests share and `own` tokens of each.

    Where `block` is not 0, the context is made of blocks of that length that are shifted.
    """
    kv_heads = workloads.HEADS[1]
    width = workloads.WIDTH
    shared, mine = -(-tokens // page), -(-own // page)
    place = torch.randperm(shared + batch * mine, device=DEVICE)
    keys, values = (numbers(kv_heads, len(place) * page, width) for _ in range(2))
    table = torch.stack([torch.cat((place[:shared], place[shared + b * mine :][:mine])) for b in range(batch)])
    at = torch.arange((shared + mine) * page, device=DEVICE)
    at = torch.where((at < tokens) | (at >= shared * page) & (at < shared * page + own), at, INVALID_POS)
    shifts = block_starts(shared + mine, page, block).expand(batch, -1) if block else None
    return keys, values, Paged.of(table, at.view(1, -1, page).expand(batch, -1, -1), shifts, partial_pages=False)


def block_starts(pages: int, page: int, block: int) -> Tensor:
    """Return the first position of every page's block [pages]: how far the block is shifted."""
    return torch.arange(pages, device=DEVICE) * page // block * block


WORKLOADS: Mapping[str, Callable[..., Iterator[KernelWorkload]]] = {
    "q_sparse_attention": scattered,
    "question_attention": questions,
    "shared_attention": decoding,
}
