"""Float8 GEMMs for many rows: twice the tensor-core rate, but different results, so only on request.

Rows and weights are rounded to e4m3 with one scale per row and per output channel (`kernels/_shared/float8_rows.py`),
and multiplied by `torch._scaled_mm`. Weights are rounded once, into a copy of half the size of the layers' weights;
the original weights are kept for GEMMs of few rows.

With u = 2^-4, rounding changes the product of a row x and a channel w by at most (2u + u²) · Σ|x||w|, plus 2^-10 of a
scale for each number that is tiny relative to the largest of its row. For random numbers errors cancel, and the
change is far smaller.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import PreTrainedModel

from workbench.core.errors import BadInput
from workbench.engine.attention_backends.choice import kernel
from workbench.engine.layers.gemm_dispatch import GemmTable
from workbench.models import float8

LEAST = 256  # rows; smaller GEMMs (questions, decoding) are bound by reading weights, and are not rounded
STEP = 16  # widths must be multiples of this
FAST = True  # use_fast_accum: partial sums stay in the tensor cores

Quantized = tuple[Tensor, Tensor]  # weight [N, K] float8, scales [N, 1] fp32


class Float8Weights:
    """The weights of a model's layers in float8, updated when the parameters change."""

    def __init__(self) -> None:
        self._rounded: dict[int, Quantized] = {}  # by address of the weight
        self._versions: list[tuple[int, int]] = []

    def follow(self, parameters: Sequence[Tensor], weights: Sequence[Tensor], kernels: bool) -> None:
        """Round `weights` [N, K] again if the `parameters`, which are views of them, were written since.

        Existing copies are overwritten in place, as graphs contain their addresses.
        """
        state = [(x.data_ptr(), x._version) for x in parameters]
        if state == self._versions:
            return
        before, self._rounded = self._rounded, {}
        for weight in weights:
            values, scales = quantize_rows(weight, kernels)
            if (known := before.get(weight.data_ptr())) is not None and known[0].shape == values.shape:
                values, scales = known[0].copy_(values), known[1].copy_(scales)
            self._rounded[weight.data_ptr()] = values, scales
        self._versions = state

    def of(self, weight: Tensor) -> Quantized | None:
        """Return a layer's weight in float8; None for other weights."""
        return self._rounded.get(weight.data_ptr())


_WEIGHTS: WeakKeyDictionary[PreTrainedModel, Float8Weights] = WeakKeyDictionary()  # shared by a model's `GemmTable`s


class Float8Products(GemmTable):
    """`GemmTable` that multiply `LEAST` or more rows in float8; fewer rows run as in `Products`."""

    def __init__(self, weights: Float8Weights, path: Path | None = None, kernels: bool = True):
        super().__init__(path)
        self.weights, self.kernels = weights, kernels

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None, parts: bool = False) -> Tensor:
        """Multiply x [R, K] by weight [N, K] -> [R, N]."""
        if (quantized := self._float8(x, weight)) is None:
            return super().__call__(x, weight, bias, parts)
        found = product(x, quantized, self.kernels)
        return found if bias is None else found.add_(bias)

    def gated_matmul(self, x: Tensor, weight: Tensor, bias: Tensor | None, gate: Any) -> Tensor:
        """Multiply x [R, K] by the two halves of weight [2 F, K], and `gate` the products [R, 2 F] -> [R, F]."""
        if self._float8(x, weight) is None:
            return super().gated_matmul(x, weight, bias, gate)
        found: Tensor = gate(self(x, weight, bias))
        return found

    def matmul_into(self, out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Write the product of x [R, K] and weight [N, K] to `out` [R, N]."""
        if (quantized := self._float8(x, weight)) is None:
            return super().matmul_into(out, x, weight, bias)
        product(x, quantized, self.kernels, out)
        return out if bias is None else out.add_(bias)

    def follow(self, parameters: Sequence[Tensor], weights: Sequence[Tensor]) -> None:
        """Round `weights` [N, K] again if `parameters` were written since the last call."""
        if odd := sorted({n for weight in weights for n in weight.shape if n % STEP}):
            raise BadInput(f"this model has widths {odd}: float8 products need multiples of {STEP}")
        self.weights.follow(parameters, weights, self.kernels)

    def _float8(self, x: Tensor, weight: Tensor) -> Quantized | None:
        return self.weights.of(weight) if len(x) >= LEAST else None


def products_of(model: PreTrainedModel, path: Path | None = None, kernels: bool = True) -> GemmTable:
    """Return the products of a model: `Float8Products` if it was loaded with dtype "float8-products", else `GemmTable`.

    `path` is the file of GEMM measurements for few rows.
    """
    if not float8.is_float8(model):
        _WEIGHTS.pop(model, None)
        return GemmTable(path)
    return Float8Products(_WEIGHTS.setdefault(model, Float8Weights()), path, kernels)


def quantize_rows(x: Tensor, kernels: bool) -> Quantized:
    """Round rows [R, K] to float8, with one scale per row."""
    module = kernel("_shared.float8_rows")
    found: Quantized = (module.launch if kernels else module.reference)(x)
    return found


def product(x: Tensor, weight: Quantized, kernels: bool, out: Tensor | None = None) -> Tensor:
    """Multiply rows x [R, K] by a float8 weight [N, K] -> [R, N] in the dtype of `x`, in `out` if given."""
    (rows, scale), (values, scales) = quantize_rows(x, kernels), weight
    options: dict[str, Any] = {"out_dtype": x.dtype, "use_fast_accum": FAST and x.is_cuda}
    options |= {} if out is None else {"out": out}
    return torch._scaled_mm(rows, values.mT, scale_a=scale, scale_b=scales.mT, **options)
