"""Matrix products of many rows in float8: twice the rate of the matrix unit, with other results, so only on request.

Rows and weights are rounded to e4m3 with one scale for each row and each output channel
(`kernels/_shared/float8_rows.py`), and multiplied by `torch._scaled_mm`. Weights are rounded once, into a copy of half
the size of the layers' weights; these are kept for products of few rows.

With u = 2^-4, rounding changes the product of a row x and a channel w by at most (2u + u²) · Σ|x||w|, plus 2^-10 of a
scale for each number that is tiny beside the largest of its row. For random numbers it is far less, as errors cancel.
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
from workbench.engine.layers.gemm_dispatch import Products
from workbench.models import float8

LEAST = 256  # rows; smaller products are bound by reading weights, and stay exact: questions and answers
STEP = 16  # widths must be multiples of it
FAST = True  # use_fast_accum: partial sums stay in the tensor core

Held = tuple[Tensor, Tensor]  # weight [N, K] float8, scales [N, 1] fp32


class Float8Weights:
    """The weights of a model's layers in float8, updated when the parameters change."""

    def __init__(self) -> None:
        self._held: dict[int, Held] = {}  # by address of the weight
        self._made_of: list[tuple[int, int]] = []

    def follow(self, parameters: Sequence[Tensor], weights: Sequence[Tensor], kernels: bool) -> None:
        """Round `weights` [N, K] again if they, or the `parameters` that are views of them, were written since.

        Existing copies are written in place, as graphs contain their addresses.
        """
        state = [(x.data_ptr(), x._version) for x in parameters]
        if state == self._made_of:
            return
        before, self._held = self._held, {}
        for weight in weights:
            values, scales = rounded(weight, kernels)
            if (known := before.get(weight.data_ptr())) is not None and known[0].shape == values.shape:
                values, scales = known[0].copy_(values), known[1].copy_(scales)
            self._held[weight.data_ptr()] = values, scales
        self._made_of = state

    def of(self, weight: Tensor) -> Held | None:
        """Return a weight in float8; None for one that is not of a layer."""
        return self._held.get(weight.data_ptr())


_WEIGHTS: WeakKeyDictionary[PreTrainedModel, Float8Weights] = WeakKeyDictionary()  # shared by all `Products` of a model


class Float8Products(Products):
    """`Products` that multiply `LEAST` or more rows in float8; fewer rows as `Products` does."""

    def __init__(self, weights: Float8Weights, path: Path | None = None, kernels: bool = True):
        super().__init__(path)
        self.weights, self.kernels = weights, kernels

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None, parts: bool = False) -> Tensor:
        """Multiply x [R, K] by weight [N, K] -> [R, N]."""
        if (held := self._held(x, weight)) is None:
            return super().__call__(x, weight, bias, parts)
        found = product(x, held, self.kernels)
        return found if bias is None else found.add_(bias)

    def gated(self, x: Tensor, weight: Tensor, bias: Tensor | None, gate: Any) -> Tensor:
        """Multiply x [R, K] by the two halves of weight [2 F, K], and `gate` the products [R, 2 F] -> [R, F]."""
        if self._held(x, weight) is None:
            return super().gated(x, weight, bias, gate)
        found: Tensor = gate(self(x, weight, bias))
        return found

    def into(self, out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Write the product of x [R, K] and weight [N, K] to `out` [R, N]."""
        if (held := self._held(x, weight)) is None:
            return super().into(out, x, weight, bias)
        product(x, held, self.kernels, out)
        return out if bias is None else out.add_(bias)

    def follow(self, parameters: Sequence[Tensor], weights: Sequence[Tensor]) -> None:
        """Round `weights` [N, K] again if `parameters` were written since."""
        if odd := sorted({n for weight in weights for n in weight.shape if n % STEP}):
            raise BadInput(f"products in float8 are of widths that {STEP} divides, this model has {odd}")
        self.weights.follow(parameters, weights, self.kernels)

    def _held(self, x: Tensor, weight: Tensor) -> Held | None:
        return self.weights.of(weight) if len(x) >= LEAST else None


def products_of(model: PreTrainedModel, path: Path | None = None, kernels: bool = True) -> Products:
    """Return the products of a model: `Float8Products` if it was loaded with dtype "float8-products", else `Products`.

    `path` is the file of measurements of few rows.
    """
    if not float8.asked(model):
        _WEIGHTS.pop(model, None)
        return Products(path)
    return Float8Products(_WEIGHTS.setdefault(model, Float8Weights()), path, kernels)


def rounded(x: Tensor, kernels: bool) -> Held:
    """Round rows [R, K] to float8, each with a scale of its own."""
    module = kernel("_shared.float8_rows")
    found: Held = (module.launch if kernels else module.reference)(x)
    return found


def product(x: Tensor, held: Held, kernels: bool, out: Tensor | None = None) -> Tensor:
    """Multiply rows x [R, K] by a weight in float8 [N, K] -> [R, N] of the dtype of `x`, in `out` where it is given."""
    (rows, scale), (weight, scales) = rounded(x, kernels), held
    given: dict[str, Any] = {} if out is None else {"out": out}
    return torch._scaled_mm(
        rows, weight.mT, scale_a=scale, scale_b=scales.mT, out_dtype=x.dtype, use_fast_accum=FAST and x.is_cuda, **given
    )
