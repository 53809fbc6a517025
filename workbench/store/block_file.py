"""One file of cached blocks: safetensors, in whose metadata stands a checksum of everything the file holds.

starts, layers   {key: position of its first token}, and how many layers; earlier files have these two only
format           of the file
identities       {key: what the block is}, of keys that know (`keys.Identity`)
checksums        {tensor: CRC-32 of its name, dtype, shape and bytes}
made             versions and kind of device that computed the blocks
header           CRC-32 of the other entries

CRC-32 finds every flipped bit and every damaged run of up to 32 bits, and all but one of 2^32 other damages; zlib's is
the fastest checksum of the standard library. Files are read, not mapped: a sector that cannot be read is then an error
and no signal, and the bytes that are checked are those that are handed out.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, Literal
from zlib import crc32

import torch
from torch import Tensor

from workbench.core.kv import KV
from workbench.store.keys import Identity, Key

FORMAT = 1  # of the metadata; files without it are read, unchecked
SUFFIX = ".safetensors"
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
MARKS = (b'"starts":"{', b'"checksums":"{', b'"identities":"{')  # a damaged header of ours still has one of them
State = tuple[int, int, int]  # by which a file that took another's place is told


class Unusable(Exception):
    """A file, or a block of it, that must not be served, and why."""

    def __init__(self, detail: str, kind: Literal["damaged", "foreign", "later"] = "damaged"):
        super().__init__(detail)
        self.detail, self.kind = detail, kind


@dataclass(frozen=True)
class Place:
    """Where a tensor lies in its file."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int  # bytes from the begin of the file


@dataclass(frozen=True)
class Contents:
    """What the header of a file says, after it was checked."""

    starts: dict[str, int]
    layers: int
    tensors: dict[str, Place]
    state: State
    checksums: dict[str, int] | None = None  # None: of an earlier version, which wrote none
    identities: dict[str, Identity] = field(default_factory=dict)
    made: dict[str, str] = field(default_factory=dict)

    def blocks(self) -> list[Key]:
        """Return the keys of its blocks."""
        return [Key(key, self.identities.get(key)) for key in self.starts]


def save(path: Path, blocks: Mapping[str, KV]) -> None:
    """Write blocks to a file."""
    tensors: dict[str, Tensor] = {}
    for key, kv in blocks.items():
        for name, x in zip(_names(key, len(kv.keys)), kv.tensors(), strict=True):
            tensors[name] = x.detach().cpu().contiguous()
    devices = {kv.keys[0].device.type for kv in blocks.values()}
    identities = {key: key.identity._asdict() for key in blocks if isinstance(key, Key) and key.identity}
    entries = {
        "starts": json.dumps({key: kv.start for key, kv in blocks.items()}),
        "layers": str(max((len(kv.keys) for kv in blocks.values()), default=0)),
        "format": str(FORMAT),
        "identities": json.dumps(identities),
        "checksums": json.dumps({name: checksum(name, x) for name, x in tensors.items()}),
        "made": json.dumps(_versions() | {"device": ", ".join(sorted(devices))}),
    }
    _write(path, entries | {"header": str(_of_entries(entries))}, tensors)


def _write(path: Path, entries: Mapping[str, str], tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file under the very name that is given: `save_file` writes to another name first, which it
    leaves behind where the process is killed."""
    header: dict[str, Any] = {"__metadata__": entries}
    end = 0
    widest_first = dict(sorted(tensors.items(), key=lambda item: -item[1].element_size()))  # so all are aligned
    for name, x in widest_first.items():
        begin, end = end, end + x.nbytes
        header[name] = {"dtype": NAMES[x.dtype], "shape": list(x.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as opened:
        opened.write(len(text).to_bytes(8, "little") + text)
        for x in widest_first.values():
            opened.write(_bytes(x))


def checksum(name: str, x: Tensor) -> int:
    """CRC-32 of a tensor on the CPU: of its name, dtype, shape and bytes."""
    described = f"{name} {NAMES.get(x.dtype, x.dtype)} {list(x.shape)}"
    return crc32(_bytes(x), crc32(described.encode()))


def contents(opened: BinaryIO) -> Contents:
    """Read and check the header of a file. Raises Unusable."""
    try:
        state = state_of(opened)
        begin, header = _header(opened, state[2])
        entries = header.pop("__metadata__", {})
        checked = set(entries) != {"starts", "layers"}
        if checked:
            _check_entries(entries)
        tensors = {name: _place(begin, tensor) for name, tensor in header.items()}
        end = max((place.begin + _size(place) for place in tensors.values()), default=begin)
        if end != state[2]:
            raise Unusable(f"its tensors end at byte {end}, and the file at {state[2]}")
        starts, layers = json.loads(entries["starts"]), int(entries["layers"])
        if set(tensors) != {name for key in starts for name in _names(key, layers)}:
            raise Unusable("its tensors are not those of its blocks")
        if not checked:
            return Contents({str(key): int(start) for key, start in starts.items()}, layers, tensors, state)
        identities = {key: Identity(**each) for key, each in json.loads(entries["identities"]).items()}
        made = json.loads(entries["made"])
        return Contents(starts, layers, tensors, state, json.loads(entries["checksums"]), identities, made)
    except OSError as problem:
        raise Unusable(f"it cannot be read: {problem.strerror or problem}") from None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, MemoryError) as problem:
        raise Unusable(f"its header is broken: {type(problem).__name__}: {str(problem)[:80]}") from None


def block(opened: BinaryIO, key: str, known: Contents, check: bool = True) -> KV:
    """Read the block of `key`, whose header is `known`, with the checksum of every tensor. Raises Unusable."""
    tensors = []
    for name in _names(key, known.layers):
        place = known.tensors[name]
        x = torch.empty(place.shape, dtype=place.dtype)
        try:
            _read_into(opened, place.begin, x)
        except OSError as problem:
            raise Unusable(f"{_short(name)} cannot be read: {problem.strerror or problem}") from None
        if check and known.checksums is not None and known.checksums.get(name) != checksum(name, x):
            raise Unusable(f"the checksum of {_short(name)} is wrong")
        tensors.append(x)
    kv = KV(tensors[: known.layers], tensors[known.layers :], known.starts[key])
    _check_shape(kv, key)
    return kv.lock()


def state_of(opened: BinaryIO) -> State:
    """Tell a file from one that takes its place later: its number, time of writing and size."""
    stat = os.fstat(opened.fileno())
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


def _header(opened: BinaryIO, size: int) -> tuple[int, dict[str, Any]]:
    """Return the byte at which tensors begin, and the header."""
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
    return 8 + length, header


def _check_entries(entries: Mapping[str, str]) -> None:
    given = {name: text for name, text in entries.items() if name != "header"}
    if entries.get("header") != str(_of_entries(given)):
        raise Unusable("the checksum of its header is wrong")
    if int(entries["format"]) > FORMAT:
        raise Unusable(f"its format is {entries['format']}, and this version reads {FORMAT} and earlier", "later")


def _of_entries(entries: Mapping[str, str]) -> int:
    return crc32(json.dumps(sorted(entries.items())).encode())


def _place(begin: int, tensor: Mapping[str, Any]) -> Place:
    first, last = tensor["data_offsets"]
    place = Place(DTYPES[tensor["dtype"]], tuple(map(int, tensor["shape"])), begin + first)
    if first < 0 or len(place.shape) != 3 or min(place.shape) < 0 or last - first != _size(place):
        raise Unusable(f"a tensor of shape {list(place.shape)} has {last - first} bytes")
    return place


def _size(place: Place) -> int:
    return prod(place.shape) * place.dtype.itemsize


def _check_shape(kv: KV, key: str) -> None:
    """Hold the block against what its key says: all that tells of a wrong file without checksums."""
    tokens, dtypes = {x.shape[1] for x in kv.tensors()}, {str(x.dtype) for x in kv.tensors()}
    if len(tokens) > 1:
        raise Unusable(f"its layers have {sorted(tokens)} tokens")
    if not isinstance(key, Key) or key.identity is None:
        return
    found = {"tokens": len(kv), "start": kv.start, "dtype": ", ".join(sorted(dtypes))}
    for name, value in found.items():
        if value != (needed := getattr(key.identity, name)):
            raise Unusable(f"its {name} is {value}, and its key says {needed}")


def _read_into(opened: BinaryIO, begin: int, x: Tensor) -> None:
    left = memoryview(_bytes(x))
    opened.seek(begin)
    while left:
        if not (count := opened.readinto(left)):  # type: ignore[attr-defined]
            raise OSError("the file ends before")
        left = left[count:]


def _bytes(x: Tensor) -> Any:
    return x.view(-1).view(torch.uint8).numpy()


def _names(key: str, layers: int) -> list[str]:
    return [f"{key}.{part}.{layer}" for part in "kv" for layer in range(layers)]


def _short(name: str) -> str:
    """`keys of layer 3`, from the name of a tensor."""
    part, layer = name.split(".")[-2:]
    return f"the {'keys' if part == 'k' else 'values'} of layer {layer}"


@cache
def _versions() -> dict[str, str]:
    found = {}
    for package in ("cached-block-workbench", "torch", "transformers"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found
