"""The block file format: safetensors, with checksums of all its content in the metadata.

starts, layers   {key: position of its first token}, and the number of layers
format           version of the format
identities       {key: components of the key} (`keys.Identity`), if known
checksums        {tensor: CRC-32 of its name, dtype, shape and bytes}
wholes           {key: CRC-32 of all bytes of the block}, if they are contiguous; verifies a hit
table            length and CRC-32 of the rest of the header, which contains the offsets of tensors
made             package versions and device type that computed the blocks
header           CRC-32 of the other entries

A block with contiguous tensors is read in one call into separate memory: the returned bytes are the verified ones, and
an unreadable sector is an error instead of a signal. Alternatively the file is memory-mapped, and the verified pages
themselves are returned, for readers that copy them at once, for example to a GPU.

A store returns mapped pages by default: a hit is then read once and not copied. For a short time this is safe:

files   are never written into: they are replaced atomically, and a reader keeps the file that it opened
pages   are read and verified before they are returned; an unreadable page is an error then
writes  to returned pages are private to the process

Later it is not: pages dropped by the system are read again, unverified, and a failing disk, or a program that modifies
the file in place, can then kill the process. To keep a block, keep `unmapped_copy(kv)`.
"""

import json
import mmap
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from workbench.core.errors import BadInput
from workbench.core.kv import KV
from workbench.core.utils.versions import versions
from workbench.store.files import file_header
from workbench.store.files.file_header import (
    ALIGNED,
    NAMES,
    Contents,
    Extent,
    Opened,
    State,
    Unusable,
    contents,
    crc32,
    of_tensor,
    raw_bytes,
    seed_of,
    state_of,
)
from workbench.store.keys import Key

__all__ = ["SUFFIX", "Contents", "State", "Unusable", "block", "contents", "save", "state_of"]
SUFFIX = ".safetensors"
POPULATES = sys.platform == "linux"  # elsewhere an unreadable page of a mapped file is a signal, so files are read
POPULATE_READ = 22  # madvise advice of Linux 5.14: an error instead of a signal for an unreadable page
PIECE, LARGE = 1 << 19, 1 << 23  # bytes per read; blocks of LARGE bytes or more are read at once, fastest for disks
Memory = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass
class MappedKV(KV):
    """KV whose tensors are mapped pages of a file; use or copy it at once."""


def unmapped_copy(kv: KV) -> KV:
    """Return read-only KV that is not mapped: `kv` itself if it is that already, else a copy."""
    return kv if kv.read_only and not isinstance(kv, MappedKV) else kv.clone().lock()


def save(path: Path, blocks: Mapping[str, KV], made: Mapping[str, str] | None = None) -> None:
    """Write blocks to a file; `made` are the versions and device that computed them (None: those of this process).

    Raises BadInput for values that are infinite or nan, before anything is written.
    """
    tensors: dict[str, Tensor] = {}
    for key, kv in blocks.items():
        for name, x in zip(file_header.names(key, len(kv.keys)), kv.tensors(), strict=True):
            if not finite(x):
                raise BadInput(
                    f"{tensor_label(name)} of block {key[:16]} hold NaN or infinity: such a block is not kept"
                )
            tensors[name] = x.detach().cpu().contiguous()
    devices = {kv.keys[0].device.type for kv in blocks.values()}
    identities = {key: key.identity._asdict() for key in blocks if isinstance(key, Key) and key.identity}
    layers = max((len(kv.keys) for kv in blocks.values()), default=0)
    alike = len({x.dtype for x in tensors.values()}) == 1
    runs = {key: [tensors[name] for name in file_header.names(key, layers)] for key in blocks if alike}
    entries = {
        "starts": json.dumps({key: kv.start for key, kv in blocks.items()}),
        "layers": str(layers),
        "format": str(file_header.FORMAT),
        "identities": json.dumps(identities),
        "checksums": json.dumps({name: of_tensor(name, x) for name, x in tensors.items()}),
        "wholes": json.dumps({key: _of_run(run) for key, run in runs.items()}),
        "made": json.dumps(versions() | {"device": ", ".join(sorted(devices))} if made is None else dict(made)),
    }
    _write(path, entries, tensors)


def _of_run(tensors: Sequence[Tensor]) -> int:
    """Return the CRC-32 of the concatenated bytes of tensors."""
    crc = 0
    for x in tensors:
        crc = crc32(raw_bytes(x), crc)
    return crc


def _write(path: Path, entries: Mapping[str, str], tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file directly under `path`.

    `save_file` uses a temporary name, and leaves that file behind if the process is killed.
    """
    places: dict[str, Any] = {}
    end = 0
    widest_first = dict(sorted(tensors.items(), key=lambda item: -item[1].element_size()))  # for alignment
    for name, x in widest_first.items():
        begin, end = end, end + x.nbytes
        places[name] = {"dtype": NAMES[x.dtype], "shape": list(x.shape), "data_offsets": [begin, end]}
    table = json.dumps(places, separators=(",", ":"))[1:].encode()
    entries = {**entries, "table": file_header.table_checksum(table)}
    entries = {**entries, "header": str(file_header.of_entries(entries))}
    text = b'{"__metadata__":' + json.dumps(entries, separators=(",", ":")).encode() + (b"," if places else b"") + table
    text += b" " * (-(len(text) + 8) % ALIGNED)
    with path.open("wb") as opened:
        opened.write(len(text).to_bytes(8, "little") + text)
        for x in widest_first.values():
            opened.write(raw_bytes(x))


def block(opened: Opened, key: str, known: Contents, mapped: bool = False) -> KV:
    """Read and verify the block of `key` from a file with header `known`. Raises Unusable."""
    extent = known.extent(key)
    crc, kind = None, KV
    try:
        if mapped and extent.size and len(extent.runs) == 1:
            memory, kind = _map(opened, extent), MappedKV
            crc = None if extent.crc is None else crc32(memory)
        else:
            memory, crc = _read(opened, extent, extent.crc is not None)
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or problem
        raise Unusable(f"its bytes cannot be read: {reason}") from None
    if crc is None or crc != extent.crc:
        verify(memory, extent, known)
        if crc is not None:
            raise Unusable("the checksum of the block is wrong")
    tensors = tensors_of(memory, extent)
    try:
        return kind(tensors[: known.layers], tensors[known.layers :], known.starts[key], read_only=True)
    except BadInput as problem:
        raise Unusable(str(problem)) from None


def verify(memory: Memory, extent: Extent, known: Contents) -> None:
    """Verify the checksum of every tensor of a block. Raises Unusable."""
    for name, place, offset in zip(extent.names, extent.places, extent.offsets, strict=True):
        part = memory[offset : offset + place.size]
        if known.checksums.get(name) != crc32(part, seed_of(name, place.dtype, place.shape)):
            raise Unusable(f"the checksum of {tensor_label(name)} is wrong")


def _read(opened: Opened, extent: Extent, check: bool) -> tuple[Memory, int | None]:
    """Read a block into new memory; return it and, if `check`, its CRC-32, computed while a piece is in the CPU cache.

    The memory is from NumPy, which uses huge pages; torch does not.
    """
    array = np.empty(extent.size, dtype=np.uint8)
    view, crc = array.data, 0
    for run in extent.runs:
        opened.seek(run.begin)
        at, end = run.offset, run.offset + run.size
        while at < end:
            piece = view[at : min(end, at + (PIECE if run.size <= LARGE else run.size))]
            if not (count := opened.readinto(piece)):
                raise OSError("the file ends before")
            crc = crc32(piece[:count], crc) if check else 0
            at += count
    return array, crc if check else None


def _map(opened: Opened, extent: Extent) -> Memory:
    """Map a block from its file, copy-on-write."""
    (run,) = extent.runs
    page = run.begin - run.begin % mmap.ALLOCATIONGRANULARITY
    if run.begin + run.size > os.fstat(opened.fileno()).st_size:
        raise OSError("the file ends before")
    pages = mmap.mmap(opened.fileno(), run.begin - page + run.size, access=mmap.ACCESS_COPY, offset=page)
    try:
        if sys.platform == "linux":
            pages.madvise(POPULATE_READ)
    except OSError as problem:
        if problem.errno != 22:  # EINVAL: Linux before 5.14
            raise
    return np.frombuffer(pages, dtype=np.uint8, offset=run.begin - page, count=run.size)


def tensors_of(memory: Memory, extent: Extent) -> list[Tensor]:
    """Return the tensors of a block as views of `memory`."""
    if extent.even and extent.size:
        first = extent.places[0]
        return list(torch.frombuffer(memory, dtype=first.dtype).view(len(extent.places), *first.shape).unbind())
    flat, parts = torch.from_numpy(memory), zip(extent.places, extent.offsets, strict=True)
    return [flat[at : at + place.size].view(place.dtype).view(place.shape) for place, at in parts]


def finite(x: Tensor) -> bool:
    """Return whether all values are finite: one pass, no copy."""
    if not x.numel():
        return True
    least, most = torch.aminmax(x if x.element_size() > 1 else x.float())
    return bool(torch.isfinite(least) & torch.isfinite(most))


def tensor_label(name: str) -> str:
    """Return a readable name of a tensor: "keys of layer 3"."""
    part, layer = name.split(".")[-2:]
    return f"the {'keys' if part == 'k' else 'values'} of layer {layer}"
