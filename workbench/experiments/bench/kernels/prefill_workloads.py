"""Workloads of prefill: whole prompts, kept tiles, chunks, blocks that are encoded, keys that are rerotated.

Inputs and their counts are as `workloads` says.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from workbench.core.tiling.tiles import Tiles
from workbench.experiments.bench import baselines, named
from workbench.experiments.bench.kernels import workloads
from workbench.experiments.bench.kernels.variants import Variant
from workbench.experiments.bench.kernels.workloads import DEVICE, KernelWorkload, frequencies, numbers, ours
from workbench.kernels._pages.lists import pages


def tiles(against: list[str], variants: Sequence[Variant], unit: int = 1024) -> Iterator[KernelWorkload]:
    """Yield dense causal prefill, and 15% of the causal tiles of 128, drawn for every head."""
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
        lists: Sequence[Tensor | None] = (None, None) if chosen is None else named("tile_attention").lists(chosen)
        for _ in workloads.sets(traffic):
            q, k, v = numbers(1, heads, tokens, width), *(numbers(1, kv_heads, tokens, width) for _ in range(2))
            work.enter_ours("tile_attention", variants, q, k, v, rows, *lists, size, size)
            if "flex" in against:
                work.enter("flex", baselines.flex_tiles, q, k, v, causal[None, None] if chosen is None else chosen)
            work.enter_dense(against, q, k, v)
        yield work


def _pairs(kept: Tensor, size: int) -> float:
    """Count the (row, key) pairs in causal tiles of `size`, half of a diagonal tile's."""
    diagonal = kept.diagonal(dim1=-2, dim2=-1).sum().item()
    return float(size * size * (kept.sum().item() - diagonal) + diagonal * size * (size + 1) / 2)


def chunks(against: list[str], variants: Sequence[Variant], unit: int = 1024) -> Iterator[KernelWorkload]:
    """A chunk of 1024 rows, batch 8, 16/4 heads, over a share of 128K tokens in pages of 128 (CompactAttention)."""
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
        seen = batch * q_heads * count * (int(past * share) * size + (count + 1) / 2)
        shape = {"batch": batch, "rows": count, "keys": tokens, "share": share, "page": size, "heads": (q_heads, heads)}
        work = KernelWorkload(f"chunk of 1024, {share:.0%} of 128K pages", shape, 4.0 * seen * width, traffic)
        q = numbers(batch, q_heads, count, width)
        k, v = (numbers(batch, heads, tokens, width) for _ in range(2))
        rows = torch.arange(tokens - count, tokens, device=DEVICE).expand(batch, -1).contiguous()
        work.enter_ours("page_list_attention", variants, q, k, v, rows, table)
        work.enter_torch(against, q, k, v, label=", dense")
        if "flashinfer" in against:
            work.enter("flashinfer", baselines.flashinfer_pages, q, k, v, table.indptr, table.indices, size)
        yield work


def encodings(against: list[str], variants: Sequence[Variant], unit: int = 1024) -> Iterator[KernelWorkload]:
    """Yield 64 blocks of a quarter to three quarters of 1024 tokens, each attending to itself."""
    heads, kv_heads = workloads.HEADS
    width = workloads.WIDTH
    lengths = torch.randint(unit // 4, 3 * unit // 4 + 1, (64,), generator=torch.Generator().manual_seed(0))
    total, longest = int(lengths.sum()), int(lengths.max())
    starts = torch.cat((torch.zeros(1, dtype=torch.int32), lengths.cumsum(0).int())).to(DEVICE)
    seen = float((lengths * (lengths + 1) / 2).sum())
    traffic = 4.0 * total * (heads + kv_heads) * width
    shape = {"blocks": len(lengths), "tokens": total, "longest": longest, "heads": workloads.HEADS}
    work = KernelWorkload("64 blocks of different lengths", shape, 4 * heads * width * seen, traffic)
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
        work.enter("ours", ours, "rotate_keys", {}, keys, far, freq)
        work.enter("torch", partial, named("rotate_keys").reference, keys, far, freq)
    yield work


WORKLOADS: Mapping[str, Callable[..., Iterator[KernelWorkload]]] = {
    "encode_blocks": encodings,
    "page_list_attention": chunks,
    "rotate_keys": rotations,
    "tile_attention": tiles,
}
