"""Delta weights: a fine-tuned model as the bitwise difference from its base model, in about half its size.

bf16 numbers are mapped to integers in the order of their values; fine-tuned ones are then close to those of the base.
Zigzag-coded differences are split into low and high bytes, and both streams are compressed with zlib. The file name is
not a standard one, so only `models.load` reads it; `from_pretrained` finds no weights. The file contains the name of
its base, and the digests of the base's and the restored weights.
"""

import shutil
import zlib
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from workbench.core.errors import BadInput
from workbench.core.utils.files import folder_atomically
from workbench.models.checkpoints import BASE, DIFFERENCE, check, check_weights, shards
from workbench.models.model_names import folder
from workbench.models.weights import adapters

LEVEL = 9  # zlib level for the smallest files
OF_BASE, OF_MODEL = "base_weights", "weights"  # keys in the file's metadata, in addition to BASE


def sortable_bits(bits: np.ndarray) -> np.ndarray:
    """Map the bits of bf16 numbers (int16) to integers in the order of their values; the map is its own inverse."""
    mapped: np.ndarray = np.where(bits < 0, bits ^ 0x7FFF, bits)
    return mapped


def encode(weights: np.ndarray, base: np.ndarray) -> tuple[bytes, bytes]:
    """Compress the difference of two arrays of bf16 bits (int16), which may overflow; return (low, high) bytes."""
    delta = sortable_bits(weights) - sortable_bits(base)
    zigzag = ((delta << 1) ^ (delta >> 15)).view(np.uint16)
    low, high = (zigzag & 0xFF).astype(np.uint8), (zigzag >> 8).astype(np.uint8)
    return zlib.compress(low.tobytes(), LEVEL), zlib.compress(high.tobytes(), LEVEL)


def decode(low: bytes, high: bytes, base: np.ndarray) -> np.ndarray:
    """Invert `encode`. Raises ValueError for streams of another length than `base`."""
    planes = [np.frombuffer(zlib.decompress(plane), np.uint8).astype(np.uint16) for plane in (low, high)]
    if any(len(plane) != len(base) for plane in planes):
        raise ValueError(f"{len(planes[0])} and {len(planes[1])} bytes for {len(base)} weights")
    zigzag = planes[0] | planes[1] << 8
    delta = ((zigzag >> 1) ^ -(zigzag & 1).astype(np.int16).view(np.uint16)).view(np.int16)
    return sortable_bits(delta + sortable_bits(base))


def save(model: str | Path, out: Path, base: str) -> None:
    """Copy the checkpoint `model` to `out`, atomically, with its weights stored as the difference from `base`.

    Raises BadInput for an existing folder, for two models that differ in names, shapes or dtypes of weights, and for
    weights that are not bf16.
    """
    if out.exists():
        raise BadInput(f"{out} is there already: a new folder is needed")
    source, origin = folder(model), folder(base)
    check(source)
    check(origin)
    weights, base_weights = _load(source), _load(origin)
    ours, theirs = ({name: (x.shape, x.dtype) for name, x in each.items()} for each in (weights, base_weights))
    if ours != theirs:
        raise BadInput(f"{source} and {base!r} differ in names, shapes or number formats of their weights")
    if other := sorted(name for name, x in weights.items() if x.dtype != torch.bfloat16):
        raise BadInput(f"{source} holds {other[0]} as {weights[other[0]].dtype}: all weights in bfloat16 are needed")
    low, high = encode(_joined(weights), _joined(base_weights))
    planes = {"low": torch.frombuffer(bytearray(low), dtype=torch.uint8)}
    planes["high"] = torch.frombuffer(bytearray(high), dtype=torch.uint8)
    about = {BASE: base, OF_BASE: adapters.digest_of(shards(origin)), OF_MODEL: adapters.digest_of(shards(source))}
    with folder_atomically(out) as partial:
        for file in source.iterdir():
            if file.is_file() and not file.name.endswith((".safetensors", ".safetensors.index.json")):
                shutil.copy2(file, partial / file.name)
        save_file(planes, partial / DIFFERENCE, about)


def base_of(path: Path) -> Path:
    """Return the folder of the base model of `path`. Raises BadInput if its weights have changed."""
    about = _about(path)
    origin = folder(about[BASE])
    check(origin)
    if (found := adapters.digest_of(shards(origin))) != about[OF_BASE]:
        raise BadInput(
            f"{path} was made of other weights of {about[BASE]!r} (digest {about[OF_BASE][:16]}, here {found[:16]})"
        )
    return origin


def restore(path: Path) -> dict[str, Tensor]:
    """Return the weights of a folder (bf16), bitwise as saved. Raises BadInput for a damaged file."""
    base, about = _load(base_of(path)), _about(path)
    planes = load_file(path / DIFFERENCE)
    try:
        low, high = (planes[name].numpy().tobytes() for name in ("low", "high"))
        bits = decode(low, high, _joined(base))
    except (KeyError, ValueError, zlib.error) as problem:
        raise BadInput(f"{path / DIFFERENCE} is damaged: {problem}") from None
    parts = np.split(bits, np.cumsum([base[name].numel() for name in sorted(base)])[:-1])
    named = zip(sorted(base), parts, strict=True)
    weights = {n: torch.from_numpy(part.copy()).view(torch.bfloat16).view(base[n].shape) for n, part in named}
    if adapters.digest(sorted(weights.items())) != about[OF_MODEL]:
        raise BadInput(f"{path / DIFFERENCE} is damaged: it restores other weights than were saved")
    return weights


def _about(path: Path) -> dict[str, str]:
    check_weights(path / DIFFERENCE)
    with safe_open(path / DIFFERENCE, framework="pt") as file:
        about = dict(file.metadata() or {})
    if lacking := [name for name in (BASE, OF_BASE, OF_MODEL) if name not in about]:
        raise BadInput(f"{path / DIFFERENCE} does not say its {lacking[0]}: it is no difference of weights")
    return about


def _load(path: Path) -> dict[str, Tensor]:
    """Read all tensors of a checkpoint folder."""
    weights: dict[str, Tensor] = {}
    for shard in shards(path):
        try:
            weights |= load_file(shard)
        except (SafetensorError, OSError) as problem:
            raise BadInput(f"{shard} is corrupt or half-written: {problem}") from None
    return weights


def _joined(weights: dict[str, Tensor]) -> np.ndarray:
    """Concatenate the bits of bf16 tensors as int16, in the order of names."""
    return torch.cat([weights[name].contiguous().view(torch.int16).flatten() for name in sorted(weights)]).numpy()
