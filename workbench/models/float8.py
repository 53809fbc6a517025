"""Which models multiply in float8: an option that is asked for by name when a model is loaded, and off by default.

    models.load(name, device="cuda", dtype="float8-products")

The model stays in bfloat16: weights, cached blocks, attention and whatever few rows are multiplied with. Products of
many rows with the weights of a layer are taken in float8 (`engine/layers/float8_products.py`), so other numbers come
out. Cached blocks of such a model therefore have keys of their own (`store/keys.py`).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakSet

import torch
from torch.nn import Module

from workbench.core.errors import BadInput

NAME = "float8-products"
NEEDED = (9, 0)  # compute capability of the first GPU whose products in float8 take a scale for each row
_ASKED: WeakSet[Module] = WeakSet()


def check(device: torch.device) -> None:
    """Refuse a device that does not multiply rows in float8."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < NEEDED:
        raise BadInput(f"dtype {NAME} needs a GPU of compute capability 9.0 (Hopper) or newer: use bfloat16 elsewhere")


def ask(model: Module) -> None:
    """Multiply many rows by this model's weights in float8 from now on. BadInput for a model that is not bfloat16."""
    if (dtype := next(model.parameters()).dtype) != torch.bfloat16:
        raise BadInput(f"products in float8 are those of a bfloat16 model, this one is {dtype}")
    _ASKED.add(model)


@contextmanager
def within(model: Module) -> Iterator[None]:
    """Multiply many rows by this model's weights in float8 within the context, as `ask` does for good."""
    ask(model)
    try:
        yield
    finally:
        _ASKED.discard(model)


def asked(model: Module) -> bool:
    """Whether `ask` was called for this model. A copy of it was not asked."""
    return model in _ASKED


def dtype_name(model: Module) -> str:
    """Return what a model computes in, as `--dtype` names it."""
    return NAME if asked(model) else str(next(model.parameters()).dtype).removeprefix("torch.")
