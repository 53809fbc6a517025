"""The workloads of every kernel: shapes of the papers' headline figures, on random numbers in bf16.

Lengths count in `unit`s, 1024 tokens; tests take fewer. A workload holds one callable for every candidate and set of
inputs; the kernel itself is called "ours". `flops` and `bytes` count what the work cannot do without: products of rows
with keys that they see, and every key, value, query and result once.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from workbench.core.page_table import INVALID_POS, Paged
from workbench.core.tiles import Tiles
from workbench.experiments.bench import baselines, named
from workbench.experiments.bench.variants import Variant
from workbench.kernels._page_lists import pages

Call = Callable[[], Any]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float32  # the interpreter cannot multiply bf16
HEADS, WIDTH, PAGE = (32, 8), 128, 128
CHUNK = (8, 16, 4)  # requests, query heads, KV heads: one GPU's part of CompactAttention's headline
COLD = 4 * 60 << 20  # bytes of inputs in all sets: four times the largest L2 cache


@dataclass
class Workload:
    """One shape of a kernel. `shape` describes it for a reader; `candidates` are ours and its baselines."""

    name: str
    shape: dict[str, Any]
    flops: float
    bytes: float
    candidates: dict[str, list[Call]] = field(default_factory=dict)

    def enter(self, name: str, make: Callable[..., Call], *arguments: Any) -> None:
        """Add one set of inputs for a candidate: `make(*arguments)`, called when it is first run.

        Inputs that are never run are not prepared; a baseline that is missing, or refuses the shape, says so when it is
        run.
        """
        made = cache(partial(make, *arguments))
        self.candidates.setdefault(name, []).append(lambda: made()())

    def enter_ours(self, kernel: str, variants: Sequence[Variant], *arguments: Any) -> None:
        """Add a kernel of ours, with every launch that is tried besides."""
        for name, variant in labelled(variants):
            self.enter(name, ours, kernel, variant, *arguments)

    def enter_torch(
        self, against: Sequence[str], q: Tensor, k: Tensor, v: Tensor, causal: bool = False, label: str = ""
    ) -> None:
        """Add PyTorch's attention by those of its backends that are asked for; `label` follows their names."""
        for name in ("flash", "cudnn"):
            if name in against:
                self.enter(name + label, baselines.torchs, name, q, k, v, causal)

    def enter_dense(self, against: Sequence[str], q: Tensor, k: Tensor, v: Tensor) -> None:
        """Add baselines that compute every row of the prompt, for want of a better method."""
        self.enter_torch(against, q, k, v, True, ", dense")
        if "flashinfer" in against:
            self.enter("flashinfer, dense", baselines.flashinfer_dense, q, k, v)


def numbers(*shape: int) -> Tensor:
    """Draw normal numbers."""
    return torch.randn(shape, device=DEVICE, dtype=DTYPE)


def frequencies() -> Tensor:
    """Return the frequencies of rotary embedding, as Llama 3 has them."""
    return 5e5 ** (-torch.arange(0, WIDTH, 2, device=DEVICE) / WIDTH)


def sets(traffic: float) -> range:
    """One entry for every set of inputs that together are larger than the cache; `traffic`: bytes of one set."""
    return range(max(1, min(8, -(-COLD // int(traffic)))))


def labelled(variants: Sequence[Variant]) -> Iterator[tuple[str, Variant]]:
    """Name the kernel's own launch "ours", and every launch that is tried besides by its keywords."""
    yield "ours", {}
    for variant in variants:
        words = [f"{value}" if name == "config" else f"{value} {name}" for name, value in variant.items()]
        yield f"ours, {', '.join(words)}", variant


def ours(kernel: str, variant: Variant, *arguments: Any) -> Call:
    """Prepare one launch of a kernel."""
    return partial(named(kernel).launch, *arguments, **variant)


def cache_of(tokens: int, batch: int, own: int, block: int, page: int) -> tuple[Tensor, Tensor, Paged]:
    """Make pages in random places: a context of `tokens` that `batch` requests share and `own` tokens of each. Where
    `block` is not 0, the context is made of blocks of that length that are shifted."""
    shared, mine = -(-tokens // page), -(-own // page)
    place = torch.randperm(shared + batch * mine, device=DEVICE)
    keys, values = (numbers(HEADS[1], len(place) * page, WIDTH) for _ in range(2))
    table = torch.stack([torch.cat((place[:shared], place[shared + b * mine :][:mine])) for b in range(batch)])
    at = torch.arange((shared + mine) * page, device=DEVICE)
    at = torch.where((at < tokens) | (at >= shared * page) & (at < shared * page + own), at, INVALID_POS)
    shifts = block_starts(shared + mine, page, block).expand(batch, -1) if block else None
    return keys, values, Paged.of(table, at.view(1, -1, page).expand(batch, -1, -1), shifts, partial_pages=False)


def block_starts(pages: int, page: int, block: int) -> Tensor:
    """Return the first position of every page's block [pages]: how far the block is shifted."""
    return torch.arange(pages, device=DEVICE) * page // block * block


def questions(against: list[str], variants: Sequence[Variant], unit: int = 1024) -> Iterator[Workload]:
    """50 rows over a long cache, with and without shifted blocks; a batch that decodes over a shared cache."""
    freq = frequencies()
    cases = [(length, 1, 50, shifted) for length in (32, 128) for shifted in (True, False)]
    for length, batch, count, shifted in [*cases, (32, 8, 1, False)]:
        tokens, page = length * unit, min(PAGE, unit)
        traffic = 2 * 2 * tokens * HEADS[1] * WIDTH + 4 * batch * count * HEADS[0] * WIDTH
        name = f"{count} rows of {batch} over {length}K{', moved' if shifted else ''}"
        shape = {"rows": count, "keys": tokens, "batch": batch, "moved": shifted, "page": page, "heads": HEADS}
        work = Workload(name, shape, 4.0 * batch * HEADS[0] * count * tokens * WIDTH, traffic)
        for _ in sets(traffic):
            keys, values, table = cache_of(tokens, batch, count, unit if shifted else 0, page)
            q = numbers(batch, HEADS[0], count, WIDTH)
            rows = (table.positions.masked_fill(table.positions == INVALID_POS, 0).amax((1, 2))[:, None]).long()
            rows = rows - count + 1 + torch.arange(count, device=DEVICE)
            work.enter_ours("question_attention", variants, q, keys, values, rows, table, freq)
            k, v = (numbers(batch, HEADS[1], tokens, WIDTH) for _ in range(2))  # baselines need a copy a request
            work.enter_torch(against, q, k, v)
        yield work
    yield in_pairs(32 * unit, 56, unit, freq)


def in_pairs(tokens: int, count: int, unit: int, freq: Tensor) -> Workload:
    """56 rows, as a question of 50 is padded to, over pages of 64 that are rerotated two by two, as a pool has them."""
    page = min(PAGE, unit) // 2
    traffic = 2 * 2 * tokens * HEADS[1] * WIDTH + 4 * count * HEADS[0] * WIDTH
    shape = {"rows": count, "keys": tokens, "batch": 1, "moved": True, "page": page, "heads": HEADS}
    name = f"{count} rows of 1 over {tokens // unit}K, moved, pages of half the size"
    work = Workload(name, shape, 4.0 * HEADS[0] * count * tokens * WIDTH, traffic)
    for _ in sets(traffic):
        keys, values, table = cache_of(tokens, 1, count, unit // 2 if unit > 16 else unit, page)
        q = numbers(1, HEADS[0], count, WIDTH)
        rows = tokens + torch.arange(count, device=DEVICE)[None]
        for label, run in (("ours", 2), ("ours, pages one by one", 1)):
            work.enter(label, ours, "question_attention", {}, q, keys, values, rows, replace(table, run=run), freq)
    return work


def scattered(against: list[str], variants: Sequence[Variant], unit: int = 1024) -> Iterator[Workload]:
    """A share of 32K rows and a question of 50, over all 32K: the attention of FusionRAG's online step, rows drawn
    at random."""
    tokens, count, page = 32 * unit, 50, min(PAGE, unit)
    freq = frequencies()
    for share in (0.05, 0.15, 0.30):
        recompute = int(tokens * share)
        drawn = torch.randperm(tokens - count, device=DEVICE)[:recompute].sort().values
        rows = torch.cat((drawn, torch.arange(tokens - count, tokens, device=DEVICE)))
        traffic = 4.0 * tokens * HEADS[1] * WIDTH + 4.0 * len(rows) * HEADS[0] * WIDTH
        seen = float((rows + 1).sum())
        shape = {"rows": len(rows), "keys": tokens, "share": share, "page": page, "heads": HEADS}
        work = Workload(f"{share:.0%} of 32K rows + 50", shape, 4 * HEADS[0] * WIDTH * seen, traffic)
        for _ in sets(traffic):
            q, k, v = numbers(1, HEADS[0], len(rows), WIDTH), *(numbers(1, HEADS[1], tokens, WIDTH) for _ in range(2))
            own, far = (stale_cache(tokens, rows, page, block) for block in (0, unit))
            work.enter_ours("q_sparse_attention", variants, q, *own[:2], rows[None], own[2], None)
            work.enter("ours, blocks turned", ours, "q_sparse_attention", {}, q, *far[:2], rows[None], far[2], freq)
            work.enter("ours, written in place", ours, "tile_attention", {}, q, k, v, rows[None])
            if "flex" in against:
                work.enter("flex", baselines.flex_rows, q, k, v, rows)
            if "cudnn" in against:  # torch's attention with a mask, as FusionRAG's figure 14b has it
                work.enter("sdpa, mask", baselines.masked, q, k, v, rows)
            work.enter_dense(against, numbers(1, HEADS[0], tokens, WIDTH), k, v)
        yield work


def stale_cache(tokens: int, rows: Tensor, page: int, block: int) -> tuple[Tensor, Tensor, Paged]:
    """Make the pages of a cached prompt, entries of `rows` [R] stale, and pages with the fresh ones. Where `block` is
    not 0, the prompt is made of blocks of that length that are shifted."""
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
    keys, values = (numbers(HEADS[1], (shared + mine) * page, WIDTH) for _ in range(2))
    return keys, values, Paged.of(table[None], at.view(1, -1, page), shifts, length=tokens)


def tiles(against: list[str], variants: Sequence[Variant], unit: int = 1024) -> Iterator[Workload]:
    """Dense causal prefill, and 15% of the causal tiles of 128, drawn for every head."""
    size = min(128, unit)
    for length, density in ((8, None), (32, None), (32, 0.15), (128, 0.15)):
        tokens = length * unit
        side = tokens // size
        causal = torch.ones(side, side, dtype=torch.bool, device=DEVICE).tril()
        chosen = None
        if density is not None:
            drawn = torch.rand(1, HEADS[0], side, side, device=DEVICE) < density
            chosen = (drawn | torch.eye(side, dtype=torch.bool, device=DEVICE)) & causal
        kept = HEADS[0] * tokens * (tokens + 1) / 2 if chosen is None else _pairs(chosen, size)
        traffic = 4.0 * tokens * (HEADS[0] + HEADS[1]) * WIDTH
        share = None if chosen is None else chosen.sum().item() / causal.sum().item() / HEADS[0]
        shape = {"tokens": tokens, "density": share, "heads": HEADS}
        label = "dense" if density is None else f"{density:.0%} of tiles"
        work = Workload(f"{label}, {length}K", shape, 4 * WIDTH * kept, traffic)
        rows = torch.arange(tokens, device=DEVICE)[None]
        lists: Sequence[Tensor | None] = (None, None) if chosen is None else named("tile_attention").lists(chosen)
        for _ in sets(traffic):
            q, k, v = numbers(1, HEADS[0], tokens, WIDTH), *(numbers(1, HEADS[1], tokens, WIDTH) for _ in range(2))
            work.enter_ours("tile_attention", variants, q, k, v, rows, *lists, size, size)
            if "flex" in against:
                work.enter("flex", baselines.flex_tiles, q, k, v, causal[None, None] if chosen is None else chosen)
            work.enter_dense(against, q, k, v)
        yield work


def _pairs(kept: Tensor, size: int) -> float:
    """Count the (row, key) pairs in causal tiles of `size`, half of a diagonal tile's."""
    diagonal = kept.diagonal(dim1=-2, dim2=-1).sum().item()
    return float(size * size * (kept.sum().item() - diagonal) + diagonal * size * (size + 1) / 2)


def chunks(against: list[str], variants: Sequence[Variant], unit: int = 1024) -> Iterator[Workload]:
    """A chunk of 1024 rows, batch 8, 16/4 heads, over a share of 128K tokens in pages of 128 (CompactAttention)."""
    (batch, q_heads, heads), count, size, tokens = CHUNK, unit, min(128, unit), 128 * unit
    for share in (0.25, 0.10):
        own, past = count // size, (tokens - count) // size
        drawn = torch.rand(batch, heads, 1, past, device=DEVICE).argsort(-1) < int(past * share)
        kept = torch.cat((drawn, torch.ones_like(drawn[..., :own])), -1)
        group = q_heads // heads
        table = pages([Tiles(choice.repeat_interleave(group, 0), size) for choice in kept], heads, group, past + own)
        read = batch * heads * (int(past * share) * size + count)
        traffic = 4.0 * read * WIDTH + 4.0 * batch * q_heads * count * WIDTH
        seen = batch * q_heads * count * (int(past * share) * size + (count + 1) / 2)
        shape = {"batch": batch, "rows": count, "keys": tokens, "share": share, "page": size, "heads": (q_heads, heads)}
        work = Workload(f"chunk of 1024, {share:.0%} of 128K pages", shape, 4.0 * seen * WIDTH, traffic)
        q = numbers(batch, q_heads, count, WIDTH)
        k, v = (numbers(batch, heads, tokens, WIDTH) for _ in range(2))
        rows = torch.arange(tokens - count, tokens, device=DEVICE).expand(batch, -1).contiguous()
        work.enter_ours("page_list_attention", variants, q, k, v, rows, table)
        work.enter_torch(against, q, k, v, label=", dense")
        if "flashinfer" in against:
            work.enter("flashinfer", baselines.flashinfer_pages, q, k, v, table.indptr, table.indices, size)
        yield work


def rotations(against: list[str], variants: Sequence[Variant], unit: int = 1024) -> Iterator[Workload]:
    """Keys of 32K tokens rerotated to new positions."""
    tokens = 32 * unit
    freq = frequencies()
    traffic = 4.0 * tokens * HEADS[1] * WIDTH
    work = Workload("32K keys turned", {"tokens": tokens, "heads": HEADS[1]}, 3.0 * tokens * HEADS[1] * WIDTH, traffic)
    far = torch.arange(tokens, device=DEVICE) // unit * unit
    for _ in sets(traffic):
        keys = numbers(HEADS[1], tokens, WIDTH)
        work.enter("ours", ours, "rotate_keys", {}, keys, far, freq)
        work.enter("torch", partial, named("rotate_keys").reference, keys, far, freq)
    yield work


def encodings(against: list[str], variants: Sequence[Variant], unit: int = 1024) -> Iterator[Workload]:
    """64 blocks of a quarter to three quarters of 1024 tokens, each attending to itself."""
    lengths = torch.randint(unit // 4, 3 * unit // 4 + 1, (64,), generator=torch.Generator().manual_seed(0))
    total, longest = int(lengths.sum()), int(lengths.max())
    starts = torch.cat((torch.zeros(1, dtype=torch.int32), lengths.cumsum(0).int())).to(DEVICE)
    seen = float((lengths * (lengths + 1) / 2).sum())
    traffic = 4.0 * total * (HEADS[0] + HEADS[1]) * WIDTH
    shape = {"blocks": len(lengths), "tokens": total, "longest": longest, "heads": HEADS}
    work = Workload("64 blocks of different lengths", shape, 4 * HEADS[0] * WIDTH * seen, traffic)
    for _ in sets(traffic):
        q, k, v = (numbers(heads, total, WIDTH) for heads in (HEADS[0], HEADS[1], HEADS[1]))
        work.enter_ours("encode_blocks", variants, q, k, v, starts, longest)
        q, k, v = (numbers(len(lengths), heads, longest, WIDTH) for heads in (HEADS[0], HEADS[1], HEADS[1]))
        work.enter_torch(against, q, k, v, True, ", padded to the longest")
    yield work


def decoding(against: list[str], variants: Sequence[Variant], unit: int = 1024) -> Iterator[Workload]:
    """A row of each of eight requests over a shared context of 32K and pages of their own, blocks shifted or not."""
    freq = frequencies()
    tokens, batch, page = 32 * unit, 8, min(PAGE, unit)
    pool = tokens + batch * page
    traffic = 4.0 * pool * HEADS[1] * WIDTH + 4.0 * batch * HEADS[0] * WIDTH
    at = torch.arange(tokens + page, device=DEVICE).view(1, -1, page)
    mine = torch.arange(tokens // page, pool // page, device=DEVICE)[:, None]
    rows = torch.full((batch, 1), tokens + page - 1, device=DEVICE)
    for moved in (False, True):
        shape = {"rows": 1, "keys": tokens, "batch": batch, "moved": moved, "page": page, "heads": HEADS}
        name = f"a row of 8 over shared 32K{', moved' if moved else ''}"
        work = Workload(name, shape, 4.0 * batch * HEADS[0] * tokens * WIDTH, traffic)
        shifts = block_starts(tokens // page, page, unit)[None] if moved else None
        still = torch.zeros_like(mine) if moved else None
        table = torch.arange(tokens // page, device=DEVICE)[None]
        shared = Paged.of(table, at[:, :-1], shifts, partial_pages=False)
        own = Paged.of(mine, at[:, -1:].expand(batch, -1, -1), still, partial_pages=False)
        both = None if shifts is None or still is None else torch.cat((shifts.expand(batch, -1), still), 1)
        table = torch.cat((table.expand(batch, -1), mine), 1)
        whole = Paged.of(table, at.expand(batch, -1, -1), both, partial_pages=False)
        for _ in sets(traffic):
            keys, values = (numbers(HEADS[1], pool, WIDTH) for _ in range(2))
            q = numbers(batch, HEADS[0], 1, WIDTH)
            work.enter_ours("shared_attention", variants, q, keys, values, rows, shared, own, freq)
            work.enter("question_attention", ours, "question_attention", {}, q, keys, values, rows, whole, freq)
            k, v = (numbers(batch, HEADS[1], tokens, WIDTH) for _ in range(2))  # baselines need a copy a request
            work.enter_torch(against, q, k, v)
        yield work


WORKLOADS: Mapping[str, Callable[..., Iterator[Workload]]] = {
    "encode_blocks": encodings,
    "page_list_attention": chunks,
    "q_sparse_attention": scattered,
    "question_attention": questions,
    "rotate_keys": rotations,
    "shared_attention": decoding,
    "tile_attention": tiles,
}
