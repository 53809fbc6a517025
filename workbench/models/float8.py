"""Float8 matrix products: an option for loading a model, off by default.

    models.load(name, device="cuda", dtype="float8-products")

Weights, cached blocks, attention and products of few rows stay in bfloat16. Products of many rows with a layer's
weights are computed in float8 (`engine.layers.float8_products`). This changes the results, so cached blocks of such a
model have separate store keys (`store.keys`).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakSet

import torch
from torch.nn import Module

from workbench.core.errors import BadInput

NAME = "float8-products"
NEEDED = (9, 0)  # minimum compute capability for float8 products with a scale per row
_ASKED: WeakSet[Module] = WeakSet()


def check(device: torch.device) -> None:
    """Raise BadInput for a device without float8 products: anything but a GPU of compute capability 9.0 or newer."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < NEEDED:
        raise BadInput(f"dtype {NAME} needs a GPU of compute capability 9.0 (Hopper) or newer: use bfloat16 elsewhere")


def ask(model: Module) -> None:
    """Enable float8 products for a model object. Raises BadInput unless the model is bfloat16."""
    if (dtype := next(model.parameters()).dtype) != torch.bfloat16:
        raise BadInput(f"the model is {dtype}: float8 products need a bfloat16 model")
    _ASKED.add(model)


@contextmanager
def float8_enabled(model: Module) -> Iterator[None]:
    """Enable float8 products within the `with` block."""
    ask(model)
    try:
        yield
    finally:
        _ASKED.discard(model)


def is_float8(model: Module) -> bool:
    """Return whether float8 products are enabled for this model object; copies do not inherit it."""
    return model in _ASKED


def dtype_name(model: Module) -> str:
    """Return the name of a model's dtype, as `--dtype` accepts it."""
    return NAME if is_float8(model) else str(next(model.parameters()).dtype).removeprefix("torch.")
