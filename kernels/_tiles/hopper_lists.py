"""Lists of key tiles for `_tiles.hopper`: the keys of a step, and the mask of each row.

`merge_pairs` merges the lists of two adjacent query tiles: a program computes both and fetches each key tile once. An
entry is 4 · tile, + 1 if the first keeps the tile, + 2 if the second does; entries are in order of tiles. It runs on
the device without synchronization.
"""

import torch
from torch import Tensor

import workbench.kernels._shared.hopper as pipe
from workbench.kernels._shared.attention import INVALID_POS
from workbench.kernels._shared.triton_import import gl, gluon_jit, jit, tl


@gluon_jit
def start_of(entry, tile_list, LISTED: gl.constexpr, PAIRED: gl.constexpr, SIZE: gl.constexpr):
    """Return the position of the first key of a list entry; OUTSIDE after the end of the list."""
    entries, list_at, tile_base = tile_list
    if LISTED:
        inside = entry < entries
        tile = gl.load(list_at + entry, mask=inside, other=0)
        if PAIRED:
            tile = tile >> 2
        return gl.where(inside, (tile - tile_base) * SIZE, pipe.OUTSIDE)
    else:
        return gl.where(entry < entries, entry * SIZE, pipe.OUTSIDE)


@gluon_jit
def starts_of(step, tile_list, LISTED: gl.constexpr, PAIRED: gl.constexpr, SIZE: gl.constexpr, N: gl.constexpr):
    """Return the positions of the first keys of a step's entries, or of the entry that it is a part of."""
    PER: gl.constexpr = N // SIZE if N > SIZE else 1
    starts = (start_of(step // (SIZE // N) if SIZE > N else step * PER, tile_list, LISTED, PAIRED, SIZE),)
    for i in gl.static_range(1, PER):
        starts += (start_of(step * PER + i, tile_list, LISTED, PAIRED, SIZE),)  # type: ignore[assignment]
    return starts


@gluon_jit
def positions_of(step, col, tile_list, LISTED: gl.constexpr, PAIRED: gl.constexpr, SIZE: gl.constexpr, N: gl.constexpr):
    """Return (positions of the keys `col` of a step, their entries)."""
    if SIZE >= N:
        entry = step // (SIZE // N)
        at = start_of(entry, tile_list, LISTED, PAIRED, SIZE) + step % (SIZE // N) * N + col
    else:
        entry = step * (N // SIZE) + col // SIZE
        at = start_of(entry, tile_list, LISTED, PAIRED, SIZE) + col % SIZE
    return at, entry


@gluon_jit
def masked_logits(s, step, consumer, at_row, tile_list, LISTED: gl.constexpr, PAIRED: gl.constexpr, SIZE: gl.constexpr):
    """Mask the logits of future keys, and of entries that this consumer does not keep."""
    N: gl.constexpr = s.type.shape[1]
    col = gl.arange(0, N, layout=gl.SliceLayout(0, s.type.layout))
    at, entry = positions_of(step, col, tile_list, LISTED, PAIRED, SIZE, N)
    if PAIRED:
        kept = gl.load(tile_list[1] + entry, mask=entry < tile_list[0], other=3) >> consumer & 1
        at += (1 - kept) * pipe.OUTSIDE
    return gl.where(at[None, :] <= at_row[:, None], s, float("-inf"))


@gluon_jit
def kept_by(step, consumer, tile_list, SIZE: gl.constexpr, N: gl.constexpr):
    """Return the bits of a step's entries that this consumer keeps; all are set after the end of the list."""
    PER: gl.constexpr = N // SIZE if N > SIZE else 1
    kept = 0
    for i in gl.static_range(PER):
        entry = step * PER + i if N > SIZE else step // (SIZE // N)
        raw = gl.load(tile_list[1] + entry, mask=(entry >= 0) & (entry < tile_list[0]), other=3)
        kept += (raw >> consumer & 1) << i
    return kept


@gluon_jit
def hide_entries(s, kept, SIZE: gl.constexpr, N: gl.constexpr):
    """Mask the logits of entries that are not in the bits `kept`."""
    PER: gl.constexpr = N // SIZE if N > SIZE else 1
    if kept != (1 << PER) - 1:
        entry = gl.arange(0, N, layout=gl.SliceLayout(0, s.type.layout)) // (N // PER)
        s = gl.where((kept >> entry & 1)[None, :] == 1, s, float("-inf"))
    return s


CHUNK = 256  # entries at a time


def merged_pairs(indptr: Tensor, indices: Tensor, lists: int) -> tuple[Tensor, Tensor]:
    """Merge lists to (indptr, indices), int32: `lists` per group become ⌈lists / 2⌉ pairs; the last may be single."""
    ends, merged = indptr.tolist(), [0]
    entries: list[int] = []
    for group in range((len(indptr) - 1) // lists):
        for first in range(group * lists, (group + 1) * lists, 2):
            both: dict[int, int] = {}
            for half, one in enumerate(range(first, min(first + 2, (group + 1) * lists))):
                for tile in indices[ends[one] : ends[one + 1]].tolist():
                    both[tile] = both.get(tile, 0) + 1 + half
            entries += [4 * tile + both[tile] for tile in sorted(both)]
            merged.append(len(entries))
    return indptr.new_tensor(merged, dtype=torch.int32), indptr.new_tensor(entries, dtype=torch.int32)


@jit
def _ends(indptr, lists, pairs):
    """Return begins and ends of the two lists of this program's pair; the second may be missing, and is then empty."""
    pair = tl.program_id(0)
    one = pair // pairs * lists + pair % pairs * 2
    begin, middle = tl.load(indptr + one), tl.load(indptr + one + 1)
    end = middle
    if pair % pairs * 2 + 1 < lists:
        end = tl.load(indptr + one + 2)
    return begin, middle, end


@jit
def _below(indices, begin, end, x, halvings):
    """Return (how many of the rising indices from `begin` to `end` are below each x, whether x is among them)."""
    low, high = tl.zeros_like(x), tl.zeros_like(x) + (end - begin)
    for _ in range(halvings):
        middle = (low + high) // 2
        less = tl.load(indices + begin + middle, mask=low < high, other=0) < x
        low, high = tl.where((low < high) & less, middle + 1, low), tl.where(less, high, middle)
    found = tl.load(indices + begin + low, mask=low < end - begin, other=-1) == x
    return low, found


@jit
def _merge_count(indptr, indices, counts, lists, pairs, halvings, CHUNK: tl.constexpr):
    begin, middle, end = _ends(indptr, lists, pairs)
    both = tl.zeros([CHUNK], tl.int32)
    for at in range(begin, middle, CHUNK):
        i = at + tl.arange(0, CHUNK)
        x = tl.load(indices + i, mask=i < middle, other=INVALID_POS)
        _, found = _below(indices, middle, end, x, halvings)
        both += (found & (i < middle)).to(tl.int32)
    tl.store(counts + tl.program_id(0) + 1, end - begin - tl.sum(both, 0))
    if tl.program_id(0) == 0:
        tl.store(counts, 0)


@jit
def _merge_write(indptr, indices, merged, entries, lists, pairs, halvings, CHUNK: tl.constexpr):
    begin, middle, end = _ends(indptr, lists, pairs)
    entries += tl.load(merged + tl.program_id(0))
    for second in tl.static_range(2):
        if second:
            first, last, other, other_end = middle, end, begin, middle
        else:
            first, last, other, other_end = begin, middle, middle, end
        common = 0  # earlier tiles that are in both lists
        for at in range(first, last, CHUNK):
            i = at + tl.arange(0, CHUNK)
            x = tl.load(indices + i, mask=i < last, other=INVALID_POS)
            below, found = _below(indices, other, other_end, x, halvings)
            twice = (found & (i < last)).to(tl.int32)
            place = i - first + below - common - (tl.cumsum(twice, 0) - twice)
            if second:
                tl.store(entries + place, 4 * x + 2, mask=(i < last) & ~found)
            else:
                tl.store(entries + place, 4 * x + 1 + 2 * twice, mask=i < last)
            common += tl.sum(twice, 0)


def merge_pairs(indptr: Tensor, indices: Tensor, lists: int, longest: int) -> tuple[Tensor, Tensor]:
    """Compute `merged_pairs` on a GPU, for lists of at most `longest` entries; unwritten after the last list."""
    pairs = -(-lists // 2)
    count = (len(indptr) - 1) // lists * pairs
    counts = torch.empty(count + 1, dtype=torch.int32, device=indptr.device)
    halvings = longest.bit_length()
    _merge_count[(count,)](indptr, indices, counts, lists, pairs, halvings, CHUNK=CHUNK, num_warps=2)
    merged = counts.cumsum(0, dtype=torch.int32)
    entries = torch.empty_like(indices)
    _merge_write[(count,)](indptr, indices, merged, entries, lists, pairs, halvings, CHUNK=CHUNK, num_warps=2)
    return merged, entries
