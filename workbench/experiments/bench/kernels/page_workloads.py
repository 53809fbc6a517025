"""Workloads of the kernels.

Over pages: tokens of a question, a share of a prompt's tokens, and batches that decode. For prefill: whole prompts,
kept tiles, chunks, encoded blocks, rerotated keys. Inputs and counts are as in `workloads`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from workbench.core.page_table import INVALID_POS, Paged
from workbench.core.tiling.tiles import Tiles
from workbench.experiments.bench import baselines, workload_module
from workbench.experiments.bench.kernels import workloads
from workbench.experiments.bench.kernels.workloads import (
    DEVICE,
    KernelWorkload,
    Variant,
    frequencies,
    kernel_call,
    numbers,
)
from workbench.kernels._pages.lists import pages


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
            k, v = (numbers(batch, kv_heads, tokens, width) for _ in range(2))  # baselines need a copy per request
            work.enter_torch(against, q, k, v)
        yield work
    yield in_pairs(32 * unit, 56, unit, freq)


def in_pairs(tokens: int, count: int, unit: int, freq: Tensor) -> KernelWorkload:
    """Return 56 rows (a padded question of 50) over pages of 64, rerotated in pairs as in a pool."""
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
            work.enter(
                label, kernel_call, "question_attention", {}, q, keys, values, rows, replace(table, run=run), freq
            )
    return work


def decoding(against: list[str], variants: Sequence[Variant], unit: int = 1024) -> Iterator[KernelWorkload]:
    """Yield one row of each of eight requests over a shared 32K context and their own pages, blocks shifted or not."""
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
            work.enter("question_attention", kernel_call, "question_attention", {}, q, keys, values, rows, whole, freq)
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
        pairs = float((rows + 1).sum())
        shape = {"rows": len(rows), "keys": tokens, "share": share, "page": page, "heads": workloads.HEADS}
        work = KernelWorkload(f"{share:.0%} of 32K rows + 50", shape, 4 * heads * width * pairs, traffic)
        for _ in workloads.sets(traffic):
            q, k, v = numbers(1, heads, len(rows), width), *(numbers(1, kv_heads, tokens, width) for _ in range(2))
            own, far = (stale_cache(tokens, rows, page, block) for block in (0, unit))
            work.enter_ours("q_sparse_attention", variants, q, *own[:2], rows[None], own[2], None)
            work.enter(
                "ours, blocks turned", kernel_call, "q_sparse_attention", {}, q, *far[:2], rows[None], far[2], freq
            )
            work.enter("ours, written in place", kernel_call, "tile_attention", {}, q, k, v, rows[None])
            if "flex" in against:
                work.enter("flex", baselines.flex_rows, q, k, v, rows)
            if "cudnn" in against:  # torch's attention with a mask, as in FusionRAG's figure 14b
                work.enter("sdpa, mask", baselines.masked_attention, q, k, v, rows)
            work.enter_dense(against, numbers(1, heads, tokens, width), k, v)
        yield work


def stale_cache(tokens: int, rows: Tensor, page: int, block: int) -> tuple[Tensor, Tensor, Paged]:
    """Return pages of a cached prompt whose entries at `rows` [R] are stale, and pages with the recomputed ones.

    If `block` is not 0, the prompt consists of shifted blocks of that length.
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
    """Return randomly placed pages: a context of `tokens` shared by `batch` requests, and `own` tokens of each.

    If `block` is not 0, the context consists of shifted blocks of that length.
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
    """Return the first position of each page's block [pages], which is the block's shift."""
    return torch.arange(pages, device=DEVICE) * page // block * block


def tiles(against: list[str], variants: Sequence[Variant], unit: int = 1024) -> Iterator[KernelWorkload]:
    """Yield dense causal prefill, and 15% of the causal tiles of 128, drawn for each head."""
    heads, kv_heads = workloads.HEADS
    width = workloads.WIDTH
    size = min(128, unit)
    for length, density in ((8, None), (32, None), (32, 0.15), (128, 0.15), (128, None)):
        tokens = length * unit
        side = tokens // size
        causal = torch.ones(side, side, dtype=torch.bool, device=DEVICE).tril()
        chosen = None
        if density is not None:
            drawn = torch.rand(1, heads, side, side, device=DEVICE) < density
            chosen = (drawn | torch.eye(side, dtype=torch.bool, device=DEVICE)) & causal
        kept = heads * tokens * (tokens + 1) / 2 if chosen is None else _pairs(chosen, size)
        traffic = 4.0 * tokens * (heads + kv_heads) * width
        share = None if chosen is None else chosen.sum().item() / causal.sum().item() / heads
        shape = {"tokens": tokens, "density": share, "heads": workloads.HEADS}
        label = "dense" if density is None else f"{density:.0%} of tiles"
        work = KernelWorkload(f"{label}, {length}K", shape, 4 * width * kept, traffic)
        rows = torch.arange(tokens, device=DEVICE)[None]
        lists: Sequence[Tensor | None] = (
            (None, None) if chosen is None else workload_module("tile_attention").lists(chosen)
        )
        for _ in workloads.sets(traffic):
            q, k, v = numbers(1, heads, tokens, width), *(numbers(1, kv_heads, tokens, width) for _ in range(2))
            work.enter_ours("tile_attention", variants, q, k, v, rows, *lists, size, size)
            if "flex" in against:
                work.enter("flex", baselines.flex_tiles, q, k, v, causal[None, None] if chosen is None else chosen)
            work.enter_dense(against, q, k, v)
        yield work


def _pairs(kept: Tensor, size: int) -> float:
    """Count the (row, key) pairs in causal tiles of `size`; a diagonal tile counts its lower half."""
    diagonal = kept.diagonal(dim1=-2, dim2=-1).sum().item()
    return float(size * size * (kept.sum().item() - diagonal) + diagonal * size * (size + 1) / 2)


def chunks(against: list[str], variants: Sequence[Variant], unit: int = 1024) -> Iterator[KernelWorkload]:
    """Yield a chunk of 1024 rows, batch 8, 16/4 heads, over part of 128K tokens in pages of 128 (CompactAttention)."""
    width = workloads.WIDTH
    (batch, q_heads, heads), count, size, tokens = workloads.CHUNK, unit, min(128, unit), 128 * unit
    for share in (0.25, 0.10):
        own, past = count // size, (tokens - count) // size
        drawn = torch.rand(batch, heads, 1, past, device=DEVICE).argsort(-1) < int(past * share)
        kept = torch.cat((drawn, torch.ones_like(drawn[..., :own])), -1)
        group = q_heads // heads
        table = pages([Tiles(choice.repeat_interleave(group, 0), size) for choice in kept], heads, group, past + own)
        read = batch * heads * (int(past * share) * size + count)
        traffic = 4.0 * read * width + 4.0 * batch * q_heads * count * width
        pairs = batch * q_heads * count * (int(past * share) * size + (count + 1) / 2)
        shape = {"batch": batch, "rows": count, "keys": tokens, "share": share, "page": size, "heads": (q_heads, heads)}
        work = KernelWorkload(f"chunk of 1024, {share:.0%} of 128K pages", shape, 4.0 * pairs * width, traffic)
        q = numbers(batch, q_heads, count, width)
        k, v = (numbers(batch, heads, tokens, width) for _ in range(2))
        rows = torch.arange(tokens - count, tokens, device=DEVICE).expand(batch, -1).contiguous()
        work.enter_ours("page_list_attention", variants, q, k, v, rows, table)
        work.enter_torch(against, q, k, v, label=", dense")
        if "flashinfer" in against:
            work.enter("flashinfer", baselines.flashinfer_pages, q, k, v, table.indptr, table.indices, size)
        yield work


def encodings(against: list[str], variants: Sequence[Variant], unit: int = 1024) -> Iterator[KernelWorkload]:
    """Yield 64 blocks of 256 to 768 tokens, each attending to itself."""
    heads, kv_heads = workloads.HEADS
    width = workloads.WIDTH
    lengths = torch.randint(unit // 4, 3 * unit // 4 + 1, (64,), generator=torch.Generator().manual_seed(0))
    total, longest = int(lengths.sum()), int(lengths.max())
    starts = torch.cat((torch.zeros(1, dtype=torch.int32), lengths.cumsum(0).int())).to(DEVICE)
    pairs = float((lengths * (lengths + 1) / 2).sum())
    traffic = 4.0 * total * (heads + kv_heads) * width
    shape = {"blocks": len(lengths), "tokens": total, "longest": longest, "heads": workloads.HEADS}
    work = KernelWorkload("64 blocks of different lengths", shape, 4 * heads * width * pairs, traffic)
    for _ in workloads.sets(traffic):
        q, k, v = (numbers(n, total, width) for n in (heads, kv_heads, kv_heads))
        work.enter_ours("encode_blocks", variants, q, k, v, starts, longest)
        q, k, v = (numbers(len(lengths), n, longest, width) for n in (heads, kv_heads, kv_heads))
        work.enter_torch(against, q, k, v, True, ", padded to the longest")
    yield work


def rotations(against: list[str], variants: Sequence[Variant], unit: int = 1024) -> Iterator[KernelWorkload]:
    """Yield keys of 32K tokens rerotated to new positions."""
    kv_heads = workloads.HEADS[1]
    width = workloads.WIDTH
    tokens = 32 * unit
    freq = frequencies()
    traffic = 4.0 * tokens * kv_heads * width
    work = KernelWorkload(
        "32K keys turned", {"tokens": tokens, "heads": kv_heads}, 3.0 * tokens * kv_heads * width, traffic
    )
    far = torch.arange(tokens, device=DEVICE) // unit * unit
    for _ in workloads.sets(traffic):
        keys = numbers(kv_heads, tokens, width)
        work.enter("ours", kernel_call, "rotate_keys", {}, keys, far, freq)
        work.enter("torch", partial, workload_module("rotate_keys").reference, keys, far, freq)
    yield work


WORKLOADS: Mapping[str, Callable[..., Iterator[KernelWorkload]]] = {
    "encode_blocks": encodings,
    "page_list_attention": chunks,
    "q_sparse_attention": scattered,
    "question_attention": questions,
    "rotate_keys": rotations,
    "shared_attention": decoding,
    "tile_attention": tiles,
}
