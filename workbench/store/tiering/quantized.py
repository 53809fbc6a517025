"""Int8 KV: per-channel scales for keys, per-token scales for values; symmetric.

Keys have channels that are large for all tokens, values have none (KIVI, arXiv:2402.02750, figure 2).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from workbench.core.errors import BadInput
from workbench.core.kv import KV

Storage = Literal["as cached", "int8"]
LEVELS = 127


@dataclass(frozen=True)
class QuantizedKV:
    """Int8 KV, per layer: `keys` and `values` [H, T, D] int8, with fp32 scales [H, 1, D] and [H, T, 1]."""

    keys: list[Tensor]
    values: list[Tensor]
    key_scales: list[Tensor]
    value_scales: list[Tensor]
    dtype: torch.dtype
    start: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes, including scales."""
        return sum(x.nbytes for x in self.tensors())

    def tensors(self) -> Iterator[Tensor]:
        """Yield all tensors, including scales."""
        for part in (self.keys, self.values, self.key_scales, self.value_scales):
            yield from part

    def restore(self) -> KV:
        """Dequantize to read-only KV in the original dtype."""
        keys = [_dequantized(x, scale, self.dtype) for x, scale in zip(self.keys, self.key_scales, strict=True)]
        values = [_dequantized(x, scale, self.dtype) for x, scale in zip(self.values, self.value_scales, strict=True)]
        return KV(keys, values, self.start).lock()


def quantize(kv: KV) -> QuantizedKV:
    """Quantize KV to int8. Raises BadInput for values that are not finite."""
    keys, key_scales = zip(*(_quantized(x, 1) for x in kv.keys), strict=True)
    values, value_scales = zip(*(_quantized(x, 2) for x in kv.values), strict=True)
    dtype = kv.keys[0].dtype
    return QuantizedKV(list(keys), list(values), list(key_scales), list(value_scales), dtype, kv.start)


def check_storage(storage: str) -> None:
    """Raise BadInput for anything but "as cached" and "int8"."""
    if storage not in get_args(Storage):
        raise BadInput(f"storage is {storage!r}: allowed are {', '.join(get_args(Storage))}")


def size_in_bytes(kv: KV) -> int:
    """Return the size of `quantize(kv)` in bytes."""
    numbers = sum(x.numel() for x in kv.tensors())
    keys, values = (sum(x.shape[0] * x.shape[axis] for x in part) for part, axis in ((kv.keys, 2), (kv.values, 1)))
    return numbers + 4 * (keys + values)


def _quantized(x: Tensor, over: int) -> tuple[Tensor, Tensor]:
    """Return x [H, T, D] in int8, and scales shared along the axis `over`."""
    exact = x.detach().float()
    largest = exact.abs().amax(over, keepdim=True)
    if not bool(largest.isfinite().all()):
        raise BadInput("KV with a number that is not finite cannot be stored in 8 bits")
    scale = (largest / LEVELS).clamp_min(torch.finfo(torch.float32).tiny)
    return (exact / scale).round().clamp(-LEVELS, LEVELS).to(torch.int8), scale


def _dequantized(x: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    return (x.float() * scale).to(dtype)
