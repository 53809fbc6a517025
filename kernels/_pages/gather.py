"""Pages copied out of a pool into the order of their positions, keys rotated on the way.

With thousands of rows to attend, one pass over the keys costs a fiftieth of the attention, and then nothing has to be
looked up any more.
"""

import torch
from torch import Tensor

from workbench.core import page_table
from workbench.core.page_table import Paged
from workbench.core.rope import Pairing, rotate
from workbench.kernels._shared.attention import INVALID_POS, planes
from workbench.kernels._shared.triton_import import jit, padded_width, tl

SLOTS = 32  # of a program


def reference(
    keys: Tensor, values: Tensor, pages: Paged, inv_freq: Tensor | None = None, pairing: Pairing = "neox"
) -> tuple[Tensor, Tensor]:
    """Keys and values [H, T, D] of a pool -> [B, H, L, D] each; L is `pages.length`, the most tokens of a request.

    Behind the tokens of a shorter request nothing is written.
    """
    assert pages.length is not None
    batch, size = len(pages.table), pages.positions.shape[-1]
    gathered = [x.new_zeros(batch, len(x), pages.length, x.shape[2]) for x in (keys, values)]
    for b in range(batch):
        at = pages.positions[b].flatten().long()
        slots = (pages.table[b, :, None].long() * size + torch.arange(size, device=keys.device)).flatten()
        used = at != page_table.INVALID_POS
        k, v = keys[:, slots[used]], values[:, slots[used]]
        if pages.shifts is not None:
            assert inv_freq is not None
            k = rotate(k, pages.shifts[b].repeat_interleave(size)[used], inv_freq, pairing)
        for x, own in zip(gathered, (k, v), strict=True):
            x[b, :, at[used]] = own
    return gathered[0], gathered[1]


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


def launch(
    keys: Tensor, values: Tensor, pages: Paged, inv_freq: Tensor | None = None, pairing: Pairing = "neox"
) -> tuple[Tensor, Tensor]:
    """`reference` by a Triton kernel; what lies behind the tokens of a request may be anything."""
    assert pages.length is not None
    heads, _, width = keys.shape
    batch, count, size = pages.positions.shape
    slots = min(SLOTS, size & -size)
    k, v = (torch.empty(batch, heads, pages.length, width, dtype=x.dtype, device=x.device) for x in (keys, values))
    rotate_ = pages.shifts is not None
    _gather[(count * (size // slots), heads, batch)](
        keys, values, k, v, pages.table, pages.positions, pages.shifts if rotate_ else pages.table, inv_freq if rotate_
        else pages.table, count, *keys.stride()[:2], *values.stride()[:2], *k.stride()[:3], PAGE=size, SLOTS=slots,
        D=width, DP=padded_width(width), HALF=len(inv_freq) if inv_freq is not None else 0,
        INTERLEAVED=pairing == "interleaved", ROTATE=rotate_,
    )  # fmt: skip
    return k, v
