"""Matrix products in float8: an option of loading a model, off by default.

    models.load(name, device="cuda", dtype="float8-products")

Weights, cached blocks, attention and products of few rows stay in bfloat16. Products of many rows with a layer's
weights are computed in float8 (`engine.layers.float8_products`), which changes the results. Cached blocks of such a
model therefore have store keys of their own (`store.keys`).
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
    """Multiply many rows by this model's weights in float8 from now on. Raises BadInput unless it is bfloat16."""
    if (dtype := next(model.parameters()).dtype) != torch.bfloat16:
        raise BadInput(f"products in float8 are those of a bfloat16 model, this one is {dtype}")
    _ASKED.add(model)


@contextmanager
def within(model: Module) -> Iterator[None]:
    """Do what `ask` does, for the length of the `with` block."""
    ask(model)
    try:
        yield
    finally:
        _ASKED.discard(model)


def asked(model: Module) -> bool:
    """Return whether `ask` was called for this model object; copies do not count."""
    return model in _ASKED


def dtype_name(model: Module) -> str:
    """Return the name of a model's dtype, as `--dtype` takes it."""
    return NAME if asked(model) else str(next(model.parameters()).dtype).removeprefix("torch.")
