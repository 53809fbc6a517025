"""Attention that tokens of cached blocks receive from few query tokens, for many layers in one launch.

    block_scores(queries [L, Hq, R, D], keys L x [H, S, D], blocks, inv_freq, pairing, page, scale, together)
        -> [T] fp32

Keys are read in place, in the pages of a pool; `blocks` has the pages, length and shift in positions of each block
(`Blocks`). There is no mask. The softmax runs within each block separately, or with `together` over all blocks. The
result is summed over rows, heads and layers.

A program processes a block of one KV head and layer. Queries are rotated back by the block's shift, so keys are neither
rotated nor copied, and logits stay in registers: keys are read twice, the second time from the cache. With `together`,
a first launch writes the sum of each block and row, and a second one reads the sums of all blocks. For 16-bit keys a
query is the sum of two 16-bit vectors.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import log
from typing import Any

import numpy as np
import torch
from torch import Tensor

from workbench.core.rope import Pairing, rotate
from workbench.kernels._shared.attention import Config, log2_scale, planes
from workbench.kernels._shared.triton_import import jit, need_triton, padded_width, tl, triton

LONGEST = 1 << 13  # maximum tokens of a block, which one program processes
MOST = 1 << 26  # maximum scores per head and layer in memory at once
COLUMNS = tl.constexpr(4)  # per block in the table
APART, SUMS, TOGETHER = (tl.constexpr(n) for n in range(3))  # kinds of launches


@dataclass(frozen=True)
class Blocks:
    """The blocks of a prompt: page numbers `pages[b]` [P], lengths, and shifts of the keys in positions."""

    pages: Sequence["np.ndarray[Any, np.dtype[Any]]"]
    lengths: Sequence[int]
    shifts: Sequence[int]

    @property
    def total(self) -> int:
        """Number of tokens."""
        return sum(self.lengths)


def reference(
    queries: Tensor,
    keys: Sequence[Tensor],
    blocks: Blocks,
    inv_freq: Tensor,
    pairing: Pairing = "neox",
    page: int = 64,
    scale: float | None = None,
    together: bool = False,
) -> Tensor:
    """Compute `launch` in torch, with keys rotated in fp32."""
    factor, found = queries.shape[-1] ** -0.5 if scale is None else scale, list[Tensor]()
    for pages, length, shift in zip(blocks.pages, blocks.lengths, blocks.shifts, strict=True):
        slots = torch.as_tensor((pages[:, None] * page + np.arange(page)).ravel()[:length].astype(np.int64))
        rotated = [rotate(x[:, slots.to(x.device)].float(), int(shift), inv_freq, pairing) for x in keys]
        rows = (x.float().unflatten(0, (len(rotated[0]), -1)).flatten(1, 2) for x in queries)
        found.append(torch.stack([row @ k.mT * factor for row, k in zip(rows, rotated, strict=True)]))
    if not found:
        return torch.zeros(0, device=queries.device)
    parts = [torch.cat(found, -1)] if together else found
    return torch.cat([part.softmax(-1).sum((0, 1, 2)) for part in parts])


@jit
def _parts(x, dtype: tl.constexpr):
    """Split a vector into a sum of two 16-bit vectors."""
    first = x.to(dtype)
    return first, (x - first.to(tl.float32)).to(dtype)


@jit
def _logits(x, rest, keys, pages, token, seen, inside, key_token, PAGE: tl.constexpr, PARTED: tl.constexpr):
    """Return the products of rows (two parts for 16-bit keys) with the keys of some tokens of a block."""
    PRECISION: tl.constexpr = "tf32" if PARTED else "ieee"
    slot = tl.load(pages + token // PAGE, mask=seen, other=0).to(tl.int64) * PAGE + token % PAGE
    k = tl.trans(tl.load(keys + slot[:, None] * key_token, mask=seen[:, None] & inside[None, :], other=0.0))
    s = tl.dot(x, k, input_precision=PRECISION)
    if PARTED:
        s = tl.dot(rest, k, s, input_precision=PRECISION)
    return s


@jit
def _block_scores(
    queries,
    base,
    layers,
    table,
    pages,
    inv_freq,
    out,
    sums,
    rows,
    group,
    factor,
    total,
    tiles,
    key_head,
    key_token,
    HALF: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    D: tl.constexpr,
    DP: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    DOES: tl.constexpr,
):
    """Score the tokens of one block, for one tile of rows of the query heads of one KV head and layer."""
    PARTED: tl.constexpr = base.dtype.element_ty != tl.float32
    block, layer = tl.program_id(0), tl.program_id(2).to(tl.int64)
    head, tile = tl.program_id(1) // tiles, tl.program_id(1) % tiles
    heads = tl.num_programs(1) // tiles
    at = table + COLUMNS * block
    first_page, length, shift, begin = tl.load(at), tl.load(at + 1), tl.load(at + 2), tl.load(at + 3)
    row, col = tile * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, DP)
    there = row < rows * group
    other, angle, sin = planes(col, shift, inv_freq, HALF, INTERLEAVED, True)
    q_at = queries + ((layer * heads + head) * group * rows + row)[:, None] * D
    inside = there[:, None] & (col < D)[None, :]
    x = tl.load(q_at + col[None, :], mask=inside, other=0.0).to(tl.float32) * tl.cos(angle)[None, :]
    x += tl.load(q_at + other[None, :], mask=inside, other=0.0).to(tl.float32) * sin[None, :]
    x *= factor
    if PARTED:
        x, rest = _parts(x, base.dtype.element_ty)
    else:
        rest = x
    keys = base + tl.multiple_of(tl.load(layers + layer), 8) + head.to(tl.int64) * key_head + col[None, :]
    lane, here = tl.arange(0, BLOCK_M), (layer * heads + head) * tiles + tile
    if DOES == TOGETHER:  # `sums` [L, H · tiles, rows] over all blocks
        sum_of = tl.load(sums + here * BLOCK_M + lane)
    else:
        m_i, l_i = tl.full([BLOCK_M], float("-inf"), tl.float32), tl.zeros([BLOCK_M], tl.float32)
        for start in range(0, length, BLOCK_N):
            token = start + tl.arange(0, BLOCK_N)
            seen = token < length
            s = _logits(x, rest, keys, pages + first_page, token, seen, col < D, key_token, PAGE, PARTED)
            s = tl.where(seen[None, :], s, float("-inf"))
            new = tl.maximum(m_i, tl.max(s, 1))
            l_i = l_i * tl.exp2(m_i - new) + tl.sum(tl.exp2(s - new[:, None]), 1)
            m_i = new
        sum_of = m_i + tl.log2(l_i)
    if DOES == SUMS:  # `sums` [L, H · tiles, blocks, rows]
        tl.store(sums + (here * tl.num_programs(0) + block) * BLOCK_M + lane, sum_of)
    else:
        out += here * total + begin
        for start in range(0, length, BLOCK_N):
            token = start + tl.arange(0, BLOCK_N)
            seen = token < length
            s = _logits(x, rest, keys, pages + first_page, token, seen, col < D, key_token, PAGE, PARTED)
            p = tl.where(there[:, None], tl.exp2(s - sum_of[:, None]), 0.0)
            tl.store(out + token, tl.sum(p, 0), mask=seen)


def configure(rows: int, dtype: torch.dtype) -> Config:
    """Return the launch shape for `rows` rows times heads of a group."""
    return Config(min(64, max(16, triton.next_power_of_2(rows))), 32 if dtype == torch.float32 else 64, 4, 3)


def takes(keys: Sequence[Tensor], inv_freq: Sequence[Tensor], longest: int = 0) -> bool:
    """Whether `launch` takes these layers, and blocks of so many tokens.

    Layers must have one shape, layout and table of frequencies, heads up to 256 channels, and blocks a limited length,
    as one program processes a block.
    """
    base, alike = keys[0], {(x.shape, x.stride(), x.dtype) for x in keys}
    apart = any((x.data_ptr() - base.data_ptr()) % (8 * base.element_size()) for x in keys)
    same = len(alike) == 1 and len({id(x) for x in inv_freq}) == 1 and not apart
    return triton is not None and same and longest <= LONGEST and base.stride(2) == 1 and base.shape[2] <= 256


def launch(
    queries: Tensor,
    keys: Sequence[Tensor],
    blocks: Blocks,
    inv_freq: Tensor,
    pairing: Pairing = "neox",
    page: int = 64,
    scale: float | None = None,
    together: bool = False,
    *,
    config: Config | None = None,
) -> Tensor:
    """Run the Triton kernel on CUDA tensors, or on CPU tensors in fp32 or fp16 under TRITON_INTERPRET=1."""
    need_triton("block_scores")
    base, (count, heads, rows, width) = keys[0], queries.shape
    if not blocks.total:
        return torch.zeros(0, device=queries.device)
    group, size = heads // len(base), base.element_size()
    config = config or configure(rows * group, base.dtype)
    tiles = triton.cdiv(rows * group, config.rows)
    tables, ends = _tables(base, keys, blocks, size)
    layers, table, pages = tables.to(base.device, non_blocking=True).split(ends)
    frequencies = inv_freq.to(base.device, torch.float32)
    constants = {
        "HALF": len(frequencies),
        "INTERLEAVED": pairing == "interleaved",
        "D": width,
        "DP": padded_width(width),
    }
    constants |= {"PAGE": page, "BLOCK_M": config.rows, "BLOCK_N": config.keys}
    queries, total = queries.contiguous(), torch.zeros(blocks.total, device=base.device)
    step, many = max(1, MOST // (len(base) * tiles * blocks.total)), len(blocks.lengths)
    rest = (rows, group, log2_scale(scale, width), blocks.total, tiles, *base.stride()[:2])
    for first in range(0, count, step):
        out = torch.empty(min(step, count - first), len(base) * tiles, blocks.total, device=base.device)
        tensors, sums = (queries[first:], base, layers[first:], table, pages, frequencies, out), out
        run = partial(_block_scores[many, out.shape[1], len(out)], **constants, **config.launch)
        if together:
            sums = torch.empty(*out.shape[:2], many, config.rows, device=base.device)
            run(*tensors, sums, *rest, DOES=SUMS.value)
            sums = sums.mul_(log(2)).logsumexp(2).div_(log(2))
        run(*tensors, sums, *rest, DOES=(TOGETHER if together else APART).value)
        total += out.sum((0, 1))
    return total


def _tables(base: Tensor, keys: Sequence[Tensor], blocks: Blocks, size: int) -> tuple[Tensor, list[int]]:
    """Return offsets of layers from the first one, a row per block, and pages, in one array for a single copy."""
    apart = np.array([(x.data_ptr() - base.data_ptr()) // size for x in keys], np.int64)
    lengths, counts = (np.array([*x], np.int64) for x in (blocks.lengths, map(len, blocks.pages)))
    rows = np.stack(
        (counts.cumsum() - counts, lengths, np.array(blocks.shifts, np.int64), lengths.cumsum() - lengths), 1
    )
    parts = [apart, rows.ravel(), np.concatenate([*blocks.pages, np.zeros(0, np.int64)]).astype(np.int64)]
    host = torch.empty(sum(map(len, parts)), dtype=torch.int64, pin_memory=base.is_cuda)
    np.concatenate(parts, out=host.numpy())
    return host, [*map(len, parts)]


def cases(device: str = "cpu", dtype: torch.dtype = torch.float32) -> Iterator[tuple[Any, ...]]:
    """Yield arguments to compare `launch` with `reference`: odd lengths, one row and many, narrow heads, still parts.

    Each case has a softmax per block, and one over all blocks.
    """
    shapes = [
        (1, (4, 2), 5, 64, 32, "neox", (37, 16, 51), 16),
        (3, (8, 2), 1, 128, 64, "neox", (130, 1), 64),
        (2, (2, 2), 40, 80, 20, "interleaved", (7, 64, 65, 3), 8),
        (2, (6, 3), 30, 96, 48, "neox", (200,), 32),
    ]
    for seed, (layers, (heads, kv_heads), rows, width, half, pairing, lengths, page) in enumerate(shapes):
        draw = torch.Generator().manual_seed(seed)
        counts = [-(-n // page) for n in lengths]
        slots = (sum(counts) + 2) * page
        numbers = torch.randperm(sum(counts) + 2, generator=draw)[: sum(counts)].split(counts)
        queries = torch.randn(layers, heads, rows, width, generator=draw) * 2
        keys = [torch.randn(kv_heads, slots, width, generator=draw).to(device, dtype) for _ in range(layers)]
        shifts = torch.randint(-500, 5000, (len(lengths),), generator=draw).tolist()
        inv_freq = 1e4 ** -(torch.arange(half) / half)
        blocks = Blocks([x.numpy() for x in numbers], lengths, [0, *shifts[1:]])
        for together in (False, True):
            yield queries.to(device, dtype), keys, blocks, inv_freq.to(device), pairing, page, None, together
