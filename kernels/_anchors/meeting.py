"""Compare cached passages with their anchors (earlier passages in the same places), and add the anchors' offsets.

An anchor is cached keys and values, and their offsets to full attention, [C, n, D] each: heads of all layers, keys as
of position 0. Tensors may be anywhere in memory; a table has the offset of each from the first layer's keys. One launch
compares all layers of all places, a second one moves them, within one cache or from pages to other pages; cached values
and offsets are read once each. Keys keep the rotation of the position they were cached at.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from workbench.core.rope import Pairing
from workbench.kernels._anchors.in_torch import ShiftedPassage
from workbench.kernels._shared.attention import planes
from workbench.kernels._shared.triton_import import jit, need_triton, padded_width, tl

Pages = np.ndarray[Any, np.dtype[Any]]  # [P] whole numbers
TOKENS, WARPS = 16, 2  # per program: at 255 registers per thread, small programs have the highest occupancy
RUN = tl.constexpr(8)  # channels that a thread reads at once
COLUMNS = tl.constexpr(7)  # per place in the tables


@jit
def _place(tiles, places, pages, tile, PAGE: tl.constexpr, TOKENS: tl.constexpr):
    """Return (place, anchors, position of its rotation, tokens, mask, places in `out`, slots read, slots written)."""
    place, first = tl.load(tiles + 2 * tile), tl.load(tiles + 2 * tile + 1)
    at = places + COLUMNS * place
    token = first + tl.arange(0, TOKENS)
    there, put = token < tl.load(at + 1), tl.load(at + 3) + token
    own = tl.load(at) + token
    to = own
    if PAGE:
        own = tl.load(pages + tl.load(at + 5) + token // PAGE, mask=there, other=0) * PAGE + token % PAGE
        to = tl.load(pages + tl.load(at + 6) + token // PAGE, mask=there, other=0) * PAGE + token % PAGE
    return place, tl.load(at + 2), tl.load(at + 4), token, there, put, own, to


@jit
def _by_run(x):
    """Sum RUN adjacent channels, which one thread has read."""
    return tl.sum(tl.reshape(x, [x.shape[0], x.shape[1] // RUN, RUN]), 2)


@jit
def _far(
    base,
    own,
    anchors,
    places,
    tiles,
    pages,
    inv_freq,
    out,
    total,
    layers,
    most,
    own_head,
    own_token,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    D: tl.constexpr,
    DP: tl.constexpr,
    PAGE: tl.constexpr,
    TOKENS: tl.constexpr,
    TURNED: tl.constexpr,
):
    """Compare some tokens of a place with one anchor: mean differences of keys and values, squared ones of values."""
    tile, anchor = tl.program_id(0) // most, tl.program_id(0) % most
    place, count, cached, token, there, put, slot, _ = _place(tiles, places, pages, tile, PAGE, TOKENS)
    if anchor >= count:
        return
    col = tl.arange(0, DP)
    other, angle, sin = planes(col, cached, inv_freq, HALF, INTERLEAVED, True)
    cos, inside = tl.cos(angle)[None, :], there[:, None] & (col < D)[None, :]
    at = anchors + (place * most + anchor) * 5
    cached_keys, cached_values = tl.multiple_of(tl.load(at), 8), tl.multiple_of(tl.load(at + 1), 8)
    span = tl.multiple_of(tl.load(at + 4), 8)
    of_keys = tl.zeros([TOKENS, DP // RUN], tl.float32)
    of_values, squares = of_keys, of_keys
    mine = slot[:, None] * own_token
    theirs = token[:, None] * D + col[None, :]
    for row in range(layers * HEADS):
        layer, head = row // HEADS, row % HEADS
        keys = base + tl.multiple_of(tl.load(own + layer), 8) + head * own_head + mine
        values = base + tl.multiple_of(tl.load(own + layers + layer), 8) + head * own_head + mine
        x = tl.load(keys + col[None, :], mask=inside, other=0.0).to(tl.float32)
        if TURNED:
            x = x * cos + tl.load(keys + other[None, :], mask=inside, other=0.0).to(tl.float32) * sin[None, :]
        y = tl.load(base + cached_keys + row * span + theirs, mask=inside, other=0.0).to(tl.float32)
        of_keys += _by_run(tl.abs(x - y))
        x = tl.load(values + col[None, :], mask=inside, other=0.0).to(tl.float32)
        y = tl.load(base + cached_values + row * span + theirs, mask=inside, other=0.0).to(tl.float32)
        of_values += _by_run(tl.abs(x - y))
        squares += _by_run((x - y) * (x - y))
    numbers = layers * HEADS * D
    target = out + anchor * total + put
    tl.store(target, tl.sum(of_keys, 1) / numbers, mask=there)
    tl.store(target + most * total, tl.sum(of_values, 1) / numbers, mask=there)
    tl.store(target + 2 * most * total, tl.sum(squares, 1), mask=there)


@jit
def _move(
    base,
    own,
    anchors,
    places,
    tiles,
    pages,
    inv_freq,
    weights,
    total,
    layers,
    most,
    own_head,
    own_token,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    D: tl.constexpr,
    DP: tl.constexpr,
    PAGE: tl.constexpr,
    TOKENS: tl.constexpr,
    TURNED: tl.constexpr,
):
    """Move some tokens of a place in one layer to their destination; from layer 1 on with the anchors' offsets."""
    layer = tl.program_id(1)
    place, count, cached, token, there, put, slot, to = _place(tiles, places, pages, tl.program_id(0), PAGE, TOKENS)
    count = tl.where(layer > 0, count, 0)
    col = tl.arange(0, DP)
    other, angle, sin = planes(col, cached, inv_freq, HALF, INTERLEAVED, False)
    cos, inside = tl.cos(angle)[None, :], there[:, None] & (col < D)[None, :]
    mine, moved_to = slot[:, None] * own_token, to[:, None] * own_token + col[None, :]
    for head in range(HEADS):
        keys = base + tl.multiple_of(tl.load(own + layer), 8) + head * own_head
        values = base + tl.multiple_of(tl.load(own + layers + layer), 8) + head * own_head
        x = tl.load(keys + mine + col[None, :], mask=inside, other=0.0)  # loads overlap the sum of offsets
        y = tl.load(values + mine + col[None, :], mask=inside, other=0.0)
        more_x = tl.zeros([TOKENS, DP], tl.float32)
        more_y = more_x
        for anchor in range(count):
            at = anchors + (place * most + anchor) * 5
            span = tl.multiple_of(tl.load(at + 4), 8)
            theirs = (layer * HEADS + head) * span + token[:, None] * D
            moved = base + tl.multiple_of(tl.load(at + 2), 8) + theirs
            k = tl.load(moved + col[None, :], mask=inside, other=0.0).to(tl.float32)
            if TURNED:
                k = k * cos + tl.load(moved + other[None, :], mask=inside, other=0.0).to(tl.float32) * sin[None, :]
            v = base + tl.multiple_of(tl.load(at + 3), 8) + theirs + col[None, :]
            share = weights + anchor * total + put
            more_x += tl.load(share, mask=there, other=0.0)[:, None] * k
            share += most * total
            v = tl.load(v, mask=inside, other=0.0).to(tl.float32)
            more_y += tl.load(share, mask=there, other=0.0)[:, None] * v
        tl.store(keys + moved_to, (x.to(tl.float32) + more_x).to(base.dtype.element_ty), mask=inside)
        tl.store(values + moved_to, (y.to(tl.float32) + more_y).to(base.dtype.element_ty), mask=inside)


def fits(keys: Sequence[Tensor], values: Sequence[Tensor], inv_freq: Sequence[Tensor]) -> bool:
    """Return whether all layers have the same shape, layout and frequency table, as the kernels require."""
    alike = {(x.shape, x.stride()) for x in (*keys, *values)}
    return len(alike) == 1 and len({id(x) for x in inv_freq}) == 1 and not keys[0].shape[2] % 8


class AnchorComparison:
    """The places of one prompt and the anchors of each.

    keys, values     [H, T, D] of each layer, of the same shape and layout (`fits`)
    starts, lengths  of the places, which are contiguous
    paged            position of the key rotation of each place, its pages, the pages that `move` writes, and the page
                     size; None: places are in one cache of the prompt, and are moved within it
    """

    def __init__(
        self,
        keys: Sequence[Tensor],
        values: Sequence[Tensor],
        starts: Sequence[int],
        lengths: Sequence[int],
        anchors: Sequence[Sequence[ShiftedPassage]],
        inv_freq: Sequence[Tensor],
        pairing: Pairing = "neox",
        paged: tuple[Sequence[int], Sequence[Pages], Sequence[Pages], int] | None = None,
    ):
        need_triton("meeting")
        base, self.most, self.total = keys[0], max(map(len, anchors)), sum(lengths)
        nothing = [np.zeros(0, np.int64)] * len(starts)
        cached, pages, moved_to, page = paged or (starts, nothing, nothing, 0)
        self._anchors = anchors  # keeps their memory alive
        size, lower = base.element_size(), base.data_ptr()
        own = (np.array([x.data_ptr() for x in (*keys, *values)]) - lower) // size
        counts = np.array([*map(len, anchors)])
        table = np.zeros((len(counts), self.most, 5), np.int64)
        rows = np.array([anchor.row for place in anchors for anchor in place], np.int64)
        rows[:, :4] = (rows[:, :4] - lower) // size
        table[np.arange(self.most) < counts[:, None]] = rows
        sizes, taken = np.array(lengths), np.array([*map(len, pages)])
        begins, behind = (np.cumsum(x) - x for x in (sizes, taken))
        places = [starts, sizes, counts, begins, cached, behind, behind + taken.sum()]
        tiles = -(-sizes // TOKENS)
        of = np.arange(len(sizes)).repeat(tiles)
        first = (np.arange(len(of)) - (tiles.cumsum() - tiles)[of]) * TOKENS
        parts = own, table, np.array(places).T, np.stack((of, first), 1), *pages, *moved_to
        flat = [part.ravel() for part in parts]
        ends = [*map(len, flat[:4]), sum(map(len, flat[4:]))]
        host = torch.empty(sum(ends), dtype=torch.int64, pin_memory=base.is_cuda)
        np.concatenate(flat, out=host.numpy())
        self._tables = host.to(base.device, non_blocking=True).split(ends)  # one copy to the GPU
        self._tiles, self._layers = len(of), len(keys)
        width, frequencies = base.shape[2], inv_freq[0].to(base.device, torch.float32)
        self._tensors = (base, *self._tables, frequencies)
        self._numbers = self.total, self._layers, self.most, *base.stride()[:2]
        self._constants = {"HEADS": len(base), "HALF": len(frequencies), "INTERLEAVED": pairing == "interleaved"}
        self._constants |= {"D": width, "DP": padded_width(width), "PAGE": page, "TOKENS": TOKENS, "num_warps": WARPS}
        self._constants |= {"TURNED": any(cached)}

    def token_distances(self) -> Tensor:
        """Return [3, A, N] fp32 of all tokens of the places: mean differences of keys, of values, squares of values.

        Inf for places with fewer than A anchors.
        """
        out = torch.full((3, self.most, self.total), torch.inf, dtype=torch.float32, device=self._tensors[0].device)
        _far[(self._tiles * self.most,)](*self._tensors, out, *self._numbers, **self._constants)
        return out

    def move(self, weights: Tensor) -> None:
        """Move places; all layers but the first get the offsets, weighted by `weights` [2, A, N] (fp32)."""
        grid = self._tiles, self._layers
        _move[grid](*self._tensors, weights.contiguous(), *self._numbers, **self._constants)
