"""KV packed layer by layer into one contiguous buffer: one copy moves a block, or a layer of it.

Blocks are read from a file directly into page-locked memory, the source of copies to a GPU. A file contains the keys of
all layers, then the values; a `PackedKV` alternates them by layer. So each tensor is read separately, and its checksum
is computed while it is in the CPU cache.
"""

import os
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

from workbench.core.errors import BadInput
from workbench.core.kv import KV
from workbench.store.files import block_file
from workbench.store.files.file_header import Contents, Extent, Opened, Unusable, crc32

ALIGNED = 256  # alignment of layers in bytes


@dataclass
class PackedKV(KV):
    """KV in one buffer `flat` [bytes] (uint8): layer i is at `layers[i]` = (begin, end), keys first, then values."""

    flat: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.uint8), repr=False, compare=False)
    layers: tuple[tuple[int, int], ...] = ()


def layers_of(kv: KV) -> tuple[tuple[int, int], ...]:
    """Return the byte range (begin, end) of each layer in a packed copy; the last end is its size."""
    layers, end = [], 0
    for k, v in zip(kv.keys, kv.values, strict=True):
        begin = -(-end // ALIGNED) * ALIGNED
        end = begin + k.nbytes + v.nbytes
        layers.append((begin, end))
    return tuple(layers)


def pack(kv: KV, pinned: bool = False) -> PackedKV:
    """Copy KV into one host buffer; with `pinned`, in page-locked memory if there is a GPU."""
    layers = layers_of(kv)
    flat = torch.zeros(layers[-1][1], dtype=torch.uint8, pin_memory=pinned and torch.cuda.is_available())
    packed = views_in(flat, layers, kv)
    for mine, theirs in zip(packed.tensors(), kv.tensors(), strict=True):
        mine.copy_(theirs)
    return packed


def views_in(flat: Tensor, layers: tuple[tuple[int, int], ...], like: KV) -> PackedKV:
    """Return KV with the shapes and dtypes of `like`, as views of `flat`."""
    keys, values = [], []
    for (begin, _), k, v in zip(layers, like.keys, like.values, strict=True):
        middle = begin + k.nbytes
        keys.append(flat[begin:middle].view(k.dtype).view(k.shape))
        values.append(flat[middle : middle + v.nbytes].view(v.dtype).view(v.shape))
    return PackedKV(keys, values, like.start, flat=flat, layers=layers)


def packed_block(opened: Opened, key: str, known: Contents) -> PackedKV | None:
    """Read and verify the block of `key` into one buffer. Raises Unusable.

    Returns None if its tensors are not contiguous, or it has no checksum as a whole.
    """
    extent = known.extent(key)
    if len(extent.runs) != 1 or extent.crc is None:
        return None
    sizes = [place.size for place in extent.places]
    layers, end = list[tuple[int, int]](), 0
    for of_keys, of_values in zip(sizes[: known.layers], sizes[known.layers :], strict=True):
        begin = end + -end % ALIGNED
        end = begin + of_keys + of_values
        layers.append((begin, end))
    flat = torch.empty(end, dtype=torch.uint8, pin_memory=torch.cuda.is_available())
    places = [begin for begin, _ in layers]
    places += [begin + size for (begin, _), size in zip(layers, sizes[: known.layers], strict=True)]
    try:
        crc = _read(opened, extent, flat.numpy().data, places)
    except (OSError, ValueError) as problem:
        raise Unusable(f"its bytes cannot be read: {getattr(problem, 'strerror', None) or problem}") from None
    if crc != extent.crc:
        block_file.block(opened, key, known)  # raises an error that names the damaged tensor
        raise Unusable("the checksum of the block is wrong")
    tensors = [
        flat[at : at + place.size].view(place.dtype).view(place.shape)
        for at, place in zip(places, extent.places, strict=True)
    ]
    keys, values = tensors[: known.layers], tensors[known.layers :]
    try:
        return PackedKV(keys, values, known.starts[key], read_only=True, flat=flat, layers=tuple(layers))
    except BadInput as problem:
        raise Unusable(str(problem)) from None


def _read(opened: Opened, extent: Extent, memory: memoryview, places: list[int]) -> int:
    """Read every tensor to its offset in `memory`; return the CRC-32 of all bytes in file order."""
    (run,) = extent.runs
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(opened.fileno(), run.begin, run.size, os.POSIX_FADV_WILLNEED)
    opened.seek(run.begin)
    crc, in_file = 0, sorted(range(len(places)), key=lambda i: extent.places[i].begin)
    ends = [extent.places[i].begin for i in in_file] + [run.begin + run.size]
    for i, (begin, end) in zip(in_file, pairwise(ends), strict=True):
        piece = memory[places[i] : places[i] + end - begin]
        at = 0
        while at < len(piece):
            if not (count := opened.readinto(piece[at:])):
                raise OSError("the file ends before")
            at += count
        crc = crc32(piece, crc)
    return crc
