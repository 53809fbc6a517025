"""The header of a block file: offsets and checksums of all blocks.

CRC-32 detects every single-bit error, every burst error of up to 32 bits, and all but one in 2^32 other errors. Intel's
ISA-L computes it several times as fast as zlib, with the same results.
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import BytesIO, FileIO
from math import prod
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from workbench.store.keys import Identity, Key

try:
    from isal.isal_zlib import crc32
except ImportError:  # no wheel for this platform
    from zlib import crc32

__all__ = ["crc32", "of_tensor", "raw_bytes", "seed_of"]
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
NAME = re.compile(r"\w[\w.-]{0,199}")  # of a file, without its suffix
FORMAT = 1  # version of the metadata format
MARKS = (b'"starts":"{', b'"checksums":"{', b'"identities":"{')  # identify a block file even if its header is damaged
ALIGNED = 64  # alignment of tensors in bytes, in a file and in memory
Opened = FileIO | BytesIO  # an unbuffered file, or the bytes of a remote one
State = tuple[int, int, int]  # identifies a version of a file


def of_tensor(name: str, x: Tensor) -> int:
    """Return the CRC-32 of a contiguous CPU tensor: of its name, dtype, shape and bytes."""
    return crc32(raw_bytes(x), seed_of(name, x.dtype, x.shape))


def seed_of(name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> int:
    """Return the CRC-32 of a tensor's name, dtype and shape: the initial value for the CRC of its bytes."""
    return crc32(f"{name} {NAMES.get(dtype, str(dtype))} {list(shape)}".encode())


def raw_bytes(x: Tensor) -> Any:
    """Return the bytes of a contiguous CPU tensor, without a copy."""
    return x.view(-1).view(torch.uint8).numpy()


class Unusable(Exception):
    """Raised for a file or block that must not be served, with the reason."""

    def __init__(self, detail: str, kind: Literal["damaged", "foreign", "later"] = "damaged"):
        super().__init__(detail)
        self.detail, self.kind = detail, kind


@dataclass(frozen=True)
class TensorLocation:
    """Location of a tensor in its file."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int  #: offset in bytes from the start of the file

    @property
    def size(self) -> int:
        """Bytes of the tensor."""
        return prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class TokenRun:
    """A contiguous byte range of a file, and where it is read to."""

    begin: int
    offset: int  #: offset in the block's memory
    size: int


@dataclass(frozen=True)
class Extent:
    """How a block is read: the smallest number of byte ranges, and the tensors in them."""

    names: tuple[str, ...]
    places: tuple[TensorLocation, ...]
    offsets: tuple[int, ...]
    runs: tuple[TokenRun, ...]
    crc: int | None  #: CRC-32 of all its bytes; None: only checksums of single tensors
    tokens: tuple[int, ...]  #: distinct token counts of its layers
    dtypes: str
    even: bool  #: all tensors have the same dtype and shape, and are contiguous

    @property
    def size(self) -> int:
        """Bytes of memory that the block needs."""
        return self.runs[-1].offset + self.runs[-1].size if self.runs else 0


@dataclass(frozen=True)
class Contents:
    """The verified header of a file."""

    starts: dict[str, int]
    layers: int
    tensors: dict[str, TensorLocation]
    state: State
    checksums: dict[str, int]
    identities: dict[str, Identity]
    made: dict[str, str]
    wholes: dict[str, int]  #: checksums of blocks whose tensors are contiguous
    _extents: dict[str, Extent] = field(default_factory=dict, repr=False, compare=False)

    def blocks(self) -> list[Key]:
        """Return the keys of all blocks."""
        return [Key(key, self.identities.get(key)) for key in self.starts]

    def extent(self, key: str) -> Extent:
        """Return how the block of `key` is read. Raises Unusable if its shape contradicts its key."""
        if (extent := self._extents.get(key)) is None:
            extent = _extent(tuple(names(key, self.layers)), self.tensors, self.wholes.get(key))
            _check_shape(extent, key, self.starts[key])
            self._extents[key] = extent
        return extent


def contents(opened: Opened, state: State | None = None) -> Contents:
    """Read and verify the header of a file; `state` is required for a remote file. Raises Unusable."""
    try:
        state = state or state_of(opened)
        begin, header, text = _header(opened, state[2])
        entries = header.pop("__metadata__", {})
        _check_entries(entries, text)
        tensors = {name: _place(begin, tensor) for name, tensor in header.items()}
        end = max((place.begin + place.size for place in tensors.values()), default=begin)
        if end != state[2]:
            raise Unusable(f"its tensors end at byte {end}, and the file at {state[2]}")
        starts, layers = json.loads(entries["starts"]), int(entries["layers"])
        if set(tensors) != {name for key in starts for name in names(key, layers)}:
            raise Unusable("its tensors are not those of its blocks")
        identities = {key: Identity(**each) for key, each in json.loads(entries["identities"]).items()}
        made, wholes = json.loads(entries["made"]), json.loads(entries["wholes"])
        return Contents(starts, layers, tensors, state, json.loads(entries["checksums"]), identities, made, wholes)
    except OSError as problem:
        raise Unusable(f"it cannot be read: {problem.strerror or problem}") from None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, MemoryError) as problem:
        raise Unusable(f"its header is broken: {type(problem).__name__}: {str(problem)[:80]}") from None


def open_without_atime(path: Path) -> FileIO:
    """Open a file without updating its access time: only hits count as uses.

    Raises Unusable if that fails, and for a folder, pipe or device.
    """
    if path.exists() and not path.is_file():
        raise Unusable("it is no file")
    try:
        return FileIO(str(path), "rb", opener=_opened_quietly)
    except FileNotFoundError:
        raise
    except OSError as problem:
        raise Unusable(problem.strerror or str(problem)) from None


def _opened_quietly(name: str, flags: int) -> int:
    flags |= getattr(os, "O_NONBLOCK", 0)  # do not block if a pipe has replaced the file
    try:
        return os.open(name, flags | getattr(os, "O_NOATIME", 0))
    except PermissionError:  # a file of a different owner
        return os.open(name, flags)


def state_of(opened: Opened) -> State:
    """Return the inode number, modification time and size of a file, which identify its version."""
    stat = os.fstat(opened.fileno())
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


def names(key: str, layers: int) -> list[str]:
    """Return the tensor names of a block: keys of every layer, then values."""
    return [f"{key}.{part}.{layer}" for part in "kv" for layer in range(layers)]


def of_entries(entries: Mapping[str, str]) -> int:
    """Return the CRC-32 of the metadata entries."""
    return crc32(json.dumps(sorted(entries.items())).encode())


def table_checksum(table: bytes) -> str:
    """Return the metadata entry `table` for the table of tensor offsets at the end of the header."""
    return f"{len(table)} {crc32(table)}"


def _header(opened: Opened, size: int) -> tuple[int, dict[str, Any], bytes]:
    """Return the offset of the first tensor, the header, and its raw text."""
    opened.seek(0)
    length = int.from_bytes(opened.read(8), "little")
    if length > size - 8:
        raise Unusable(f"its header has {length} bytes, and the file {size}")
    text = opened.read(length)
    header = json.loads(text)
    if not isinstance(header, dict):
        raise Unusable("its header is no JSON object")
    if not any(mark in text for mark in MARKS):
        raise Unusable("it holds no cached blocks", "foreign")
    return 8 + length, header, text


def _check_entries(entries: Mapping[str, str], text: bytes) -> None:
    if entries.get("header") != str(of_entries({name: text for name, text in entries.items() if name != "header"})):
        raise Unusable("the checksum of its header is wrong")
    if int(entries["format"]) > FORMAT:
        raise Unusable(f"its format is {entries['format']}, and this version reads {FORMAT} and earlier", "later")
    length = int(entries["table"].split()[0])
    if entries["table"] != table_checksum(text.rstrip(b" ")[-length:]):
        raise Unusable("the checksum of its tensors' places is wrong")


def _place(begin: int, tensor: Mapping[str, Any]) -> TensorLocation:
    first, last = tensor["data_offsets"]
    place = TensorLocation(DTYPES[tensor["dtype"]], tuple(map(int, tensor["shape"])), begin + first)
    if first < 0 or len(place.shape) != 3 or min(place.shape) < 0 or last - first != place.size:
        raise Unusable(f"a tensor of shape {list(place.shape)} has {last - first} bytes")
    return place


def _extent(tensor_names: tuple[str, ...], tensors: Mapping[str, TensorLocation], crc: int | None) -> Extent:
    places = tuple(tensors[name] for name in tensor_names)
    offsets: dict[int, int] = {}
    runs: list[TokenRun] = []
    for place in sorted(places, key=lambda place: place.begin):
        if runs and runs[-1].begin + runs[-1].size == place.begin:
            last = runs.pop()
            runs.append(TokenRun(last.begin, last.offset, last.size + place.size))
        else:
            end = runs[-1].offset + runs[-1].size if runs else 0
            runs.append(TokenRun(place.begin, end + -end % ALIGNED, place.size))
        offsets[place.begin] = runs[-1].offset + place.begin - runs[-1].begin
    at = tuple(offsets[place.begin] for place in places)
    tokens = tuple(sorted({place.shape[1] for place in places}))
    dtypes = ", ".join(sorted({str(place.dtype) for place in places}))
    alike = len({(place.dtype, place.shape) for place in places}) == 1
    even = alike and at == tuple(i * places[0].size for i in range(len(places)))
    return Extent(tensor_names, places, at, tuple(runs), crc if len(runs) == 1 else None, tokens, dtypes, even)


def _check_shape(extent: Extent, key: str, start: int) -> None:
    """Raise Unusable if token counts, start or dtype of a block contradict its key."""
    if len(extent.tokens) > 1:
        raise Unusable(f"its layers have {list(extent.tokens)} tokens")
    if not isinstance(key, Key) or key.identity is None:
        return
    found = {"tokens": next(iter(extent.tokens), 0), "start": start, "dtype": extent.dtypes}
    for name, value in found.items():
        if value != (needed := getattr(key.identity, name)):
            raise Unusable(f"its {name} is {value}, and its key says {needed}")
