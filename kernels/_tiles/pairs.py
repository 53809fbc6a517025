"""Lists of two neighbouring query tiles as one, so that a program computes both.

It fetches a tile of keys for both at once. An entry is 4 · tile + 1 where the first keeps the tile, + 2 where the
second does; entries rise as tiles do. Made on the device: nothing waits for it.
"""

import torch
from torch import Tensor

from workbench.kernels._shared.attention import INVALID_POS
from workbench.kernels._shared.triton_import import jit, tl

CHUNK = 256  # entries at a time


def reference(indptr: Tensor, indices: Tensor, lists: int) -> tuple[Tensor, Tensor]:
    """(indptr [N + 1], indices), int32: `lists` query tiles a group become ⌈lists / 2⌉ pairs; the last may be alone."""
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
    """Where the two lists of this program's pair begin and end; the second is empty where the first is alone."""
    pair = tl.program_id(0)
    one = pair // pairs * lists + pair % pairs * 2
    begin, middle = tl.load(indptr + one), tl.load(indptr + one + 1)
    end = middle
    if pair % pairs * 2 + 1 < lists:
        end = tl.load(indptr + one + 2)
    return begin, middle, end


@jit
def _below(indices, begin, end, x, halvings):
    """(how many of the rising indices from `begin` to `end` are below each x, whether x is among them)."""
    low, high = tl.zeros_like(x), tl.zeros_like(x) + (end - begin)
    for _ in range(halvings):
        middle = (low + high) // 2
        less = tl.load(indices + begin + middle, mask=low < high, other=0) < x
        low, high = tl.where((low < high) & less, middle + 1, low), tl.where(less, high, middle)
    found = tl.load(indices + begin + low, mask=low < end - begin, other=-1) == x
    return low, found


@jit
def _count(indptr, indices, counts, lists, pairs, halvings, CHUNK: tl.constexpr):
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
def _write(indptr, indices, merged, entries, lists, pairs, halvings, CHUNK: tl.constexpr):
    begin, middle, end = _ends(indptr, lists, pairs)
    entries += tl.load(merged + tl.program_id(0))
    for second in tl.static_range(2):
        if second:
            first, last, other, other_end = middle, end, begin, middle
        else:
            first, last, other, other_end = begin, middle, middle, end
        common = 0  # tiles before, which both lists hold: counted twice
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


def launch(indptr: Tensor, indices: Tensor, lists: int, longest: int) -> tuple[Tensor, Tensor]:
    """`reference` on the GPU, for lists of at most `longest` entries; `indices` is unwritten behind the last list."""
    pairs = -(-lists // 2)
    count = (len(indptr) - 1) // lists * pairs
    counts = torch.empty(count + 1, dtype=torch.int32, device=indptr.device)
    halvings = longest.bit_length()
    _count[(count,)](indptr, indices, counts, lists, pairs, halvings, CHUNK=CHUNK, num_warps=2)
    merged = counts.cumsum(0, dtype=torch.int32)
    entries = torch.empty_like(indices)
    _write[(count,)](indptr, indices, merged, entries, lists, pairs, halvings, CHUNK=CHUNK, num_warps=2)
    return merged, entries
