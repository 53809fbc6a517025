"""Paged attention of many scattered query tokens: recomputed tokens and the question (FusionRAG's Q-Sparse-Attn).

    q_sparse_attention(q [B, Hq, R, D], keys [H, T, D], values [H, T, D], rows [B, R], pages, inv_freq, pairing, scale)
        -> [B, Hq, R, D], same dtype

Like `question_attention`, but for many rows: row r of request b is at position `rows[b, r]` (rising; -1 at the end for
padding) and attends to all slots up to that position. A request reads pages of cached blocks, which others may share,
and its own pages with the new keys of its rows; `pages.positions` has INVALID_POS for the stale entries of those rows.
Cached pages are not written.

If the pages contain each position once (`pages.length` is known), keys and values are copied in order of positions, and
rerotated on the way; then `tile_attention`'s kernel runs. With thousands of rows the copy is cheap compared with the
attention. Otherwise, or with an explicit launch configuration, pages are read in place: a tile of the matrix product is
128 rows times heads of a group, and tiles that all of its rows attend to skip the mask.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from workbench.core import page_table
from workbench.core.page_table import Paged
from workbench.core.rope import Pairing, rotate
from workbench.kernels._pages import triton_kernel as _pages_triton
from workbench.kernels._pages.case import case as drawn
from workbench.kernels._pages.triton_kernel import reference
from workbench.kernels._shared.attention import INVALID_POS, Config, planes, rows_first
from workbench.kernels._shared.triton_import import jit, need_triton, padded_width, tl
from workbench.kernels._tiles import triton_kernel as _tiles_triton

SLOTS = 32  # slots per program


def gathered(
    keys: Tensor, values: Tensor, pages: Paged, inv_freq: Tensor | None = None, pairing: Pairing = "neox"
) -> tuple[Tensor, Tensor]:
    """Return keys and values [H, T, D] of a pool in order of positions: [B, H, L, D] each, L is `pages.length`.

    They are 0 after the tokens of a shorter request. This is the torch reference of `gather_pages`.
    """
    assert pages.length is not None
    batch, size = len(pages.table), pages.positions.shape[-1]
    copies = [x.new_zeros(batch, len(x), pages.length, x.shape[2]) for x in (keys, values)]
    for b in range(batch):
        at = pages.positions[b].flatten().long()
        slots = (pages.table[b, :, None].long() * size + torch.arange(size, device=keys.device)).flatten()
        used = at != page_table.INVALID_POS
        k, v = keys[:, slots[used]], values[:, slots[used]]
        if pages.shifts is not None:
            assert inv_freq is not None
            k = rotate(k, pages.shifts[b].repeat_interleave(size)[used], inv_freq, pairing)
        for x, own in zip(copies, (k, v), strict=True):
            x[b, :, at[used]] = own
    return copies[0], copies[1]


@jit
def _gather(
    keys, values, new_keys, new_values, table, positions, shifts, inv_freq, pages,
    key_head, key_token, value_head, value_token, new_batch, new_head, new_token,
    PAGE: tl.constexpr, SLOTS: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, HALF: tl.constexpr,
    INTERLEAVED: tl.constexpr, ROTATE: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0) // (PAGE // SLOTS)
    within = tl.program_id(0) % (PAGE // SLOTS) * SLOTS + tl.arange(0, SLOTS)
    head, request = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    page = request * pages + place
    at = tl.load(positions + page * PAGE + within)
    there = (at != INVALID_POS)[:, None]
    token = tl.load(table + page).to(tl.int64) * PAGE + within
    col = tl.arange(0, DP)
    inside = there & (col < D)[None, :]
    source = keys + head * key_head + token[:, None] * key_token
    target = request * new_batch + head * new_head + at.to(tl.int64)[:, None] * new_token + col[None, :]
    k = tl.load(source + col[None, :], mask=inside, other=0.0)
    if ROTATE:
        shift = tl.load(shifts + page)
        if shift != 0:
            other, angle, sin = planes(col, shift, inv_freq, HALF, INTERLEAVED, False)
            y = tl.load(source + other[None, :], mask=inside, other=0.0)
            k = (k.to(tl.float32) * tl.cos(angle)[None, :] + y.to(tl.float32) * sin[None, :]).to(k.dtype)
    tl.store(new_keys + target, k, mask=inside)
    v = tl.load(values + head * value_head + token[:, None] * value_token + col[None, :], mask=inside, other=0.0)
    tl.store(new_values + target, v, mask=inside)


def gather_pages(
    keys: Tensor, values: Tensor, pages: Paged, inv_freq: Tensor | None = None, pairing: Pairing = "neox"
) -> tuple[Tensor, Tensor]:
    """Run `gathered` as a Triton kernel; memory after the tokens of a shorter request is unwritten."""
    assert pages.length is not None
    heads, _, width = keys.shape
    batch, count, size = pages.positions.shape
    slots = min(SLOTS, size & -size)
    k, v = (torch.empty(batch, heads, pages.length, width, dtype=x.dtype, device=x.device) for x in (keys, values))
    rotate_ = pages.shifts is not None
    tensors = keys, values, k, v, pages.table, pages.positions, pages.shifts if rotate_ else pages.table
    sizes = inv_freq if rotate_ else pages.table, count
    strides = *keys.stride()[:2], *values.stride()[:2], *k.stride()[:3]
    constants = {"PAGE": size, "SLOTS": slots, "D": width, "DP": padded_width(width)}
    constants |= {"HALF": len(inv_freq) if inv_freq is not None else 0, "INTERLEAVED": pairing == "interleaved"}
    _gather[(count * (size // slots), heads, batch)](*tensors, *sizes, *strides, **constants, ROTATE=rotate_)
    return k, v


__all__ = ["cases", "configure", "launch", "paged", "reference"]

paged = Paged.of


def configure(width: int, dtype: torch.dtype) -> Config:
    """Return the launch configuration for head width `width`."""
    if dtype == torch.float32:
        return Config(32, 32, 4, 1)
    return Config(128, 64, 8, 2) if width > 128 else Config(128, 128 if width <= 64 else 64, 8, 3)


def launch(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    rows: Tensor,
    pages: Paged,
    inv_freq: Tensor | None = None,
    pairing: Pairing = "neox",
    scale: float | None = None,
    *,
    splits: int | None = None,
    config: Config | None = None,
) -> Tensor:
    """Run the Triton kernel on CUDA tensors, or on CPU tensors in fp32 or fp16 under TRITON_INTERPRET=1."""
    need_triton("q_sparse_attention")
    if config is None and splits is None and pages.length is not None:
        ordered = gather_pages(rows_first(keys), rows_first(values), pages, inv_freq, pairing)
        return _tiles_triton.launch(None, q, *ordered, rows, None, None, 128, q.shape[2], scale)
    config = config or configure(q.shape[3], q.dtype)
    splits = splits or _pages_triton.parts_for(config, q, len(keys), pages, 1)
    return _pages_triton.launch(config, splits, q, keys, values, rows, pages, inv_freq, pairing, scale)


def cases(device: str = "cpu", dtype: torch.dtype = torch.float32) -> Iterator[tuple[Any, ...]]:
    """Yield arguments to compare `launch` with `reference`: stale entries, shared blocks, head widths, odd lengths."""
    case = partial(drawn, device=device, dtype=dtype)
    yield case(1, contexts=[[0, 1, 2]], blocks=[37, 66, 51], questions=[5], recompute=0.3, width=128)
    yield case(2, contexts=[[0, 1], [1, 2]], blocks=[33, 64, 7], questions=[3, 1], recompute=0.15, pairing="neox")
    yield case(3, contexts=[[0]], blocks=[45], questions=[1], recompute=1.0, width=80, heads=(3, 1))  # all are stale
    yield case(4, contexts=[[0]], blocks=[101], questions=[7], recompute=0.5, width=96, heads=(10, 2), page=32)
    yield case(
        5,
        contexts=[[1, 0]],
        blocks=[40, 19],
        questions=[4],
        recompute=0.4,
        width=256,
        heads=(2, 2),
        pairing="interleaved",
        page=64,
    )
    yield case(6, contexts=[[], [0]], blocks=[30], questions=[0, 3], recompute=0.2, page=1)  # one without rows
