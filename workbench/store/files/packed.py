"""KV in one run of bytes, layer by layer, so that one copy moves a block, or one layer of it."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from workbench.core.kv import KV
from workbench.store.files.checksums import crc32, raw_bytes

ALIGNED = 256  # bytes at a multiple of which a layer begins


@dataclass
class PackedKV(KV):
    """`flat` [bytes] uint8 holds the keys and then the values of every layer; `layers` [(begin, end)] in it.

    checksum   CRC-32 of `flat`, where it was asked for
    """

    flat: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.uint8), repr=False, compare=False)
    layers: tuple[tuple[int, int], ...] = ()
    checksum: int | None = None

    @property
    def intact(self) -> bool:
        """Whether its bytes are those that were packed, where it has a checksum."""
        return self.checksum is None or self.checksum == crc32(raw_bytes(self.flat))


def layers_of(kv: KV) -> tuple[tuple[int, int], ...]:
    """Return where the layers of a packed copy begin and end, in bytes; the last end is its size."""
    layers, end = [], 0
    for k, v in zip(kv.keys, kv.values, strict=True):
        begin = -(-end // ALIGNED) * ALIGNED
        end = begin + k.nbytes + v.nbytes
        layers.append((begin, end))
    return tuple(layers)


def pack(kv: KV, pinned: bool = False, checked: bool = False) -> PackedKV:
    """Copy KV into one run of bytes on the host; with `pinned`, in page-locked memory (where there is a GPU).

    `checked`: with a checksum of them.
    """
    layers = layers_of(kv)
    flat = torch.zeros(layers[-1][1], dtype=torch.uint8, pin_memory=pinned and torch.cuda.is_available())
    packed = within(flat, layers, kv)
    for mine, theirs in zip(packed.tensors(), kv.tensors(), strict=True):
        mine.copy_(theirs)
    if checked:
        packed.checksum = crc32(raw_bytes(flat))
    return packed


def within(flat: Tensor, layers: tuple[tuple[int, int], ...], like: KV) -> PackedKV:
    """Return KV of the shape and dtype of `like` whose tensors are views of `flat`."""
    keys, values = [], []
    for (begin, _), k, v in zip(layers, like.keys, like.values, strict=True):
        middle = begin + k.nbytes
        keys.append(flat[begin:middle].view(k.dtype).view(k.shape))
        values.append(flat[middle : middle + v.nbytes].view(v.dtype).view(v.shape))
    return PackedKV(keys, values, like.start, flat=flat, layers=layers)
