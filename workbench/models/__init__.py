"""Checkpoints and model families; public functions can be imported from here: `models.load("lab-full")`.

They are imported on first use: `models.pretrained` and other modules without a model must not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from workbench.core.errors import did_you_mean

if TYPE_CHECKING:
    from workbench.models.checkpoints import base_folder, check, weights_of
    from workbench.models.loading import DTYPES, Loaded, load
    from workbench.models.model_card import describe, layout_of, note_of, training_seed
    from workbench.models.model_names import device_of, folder, names

__all__ = [
    "DTYPES",
    "Loaded",
    "base_folder",
    "check",
    "describe",
    "device_of",
    "folder",
    "layout_of",
    "load",
    "names",
    "note_of",
    "training_seed",
    "weights_of",
]
_HOME = dict.fromkeys(("describe", "layout_of", "note_of", "training_seed"), "model_card")
_HOME |= dict.fromkeys(("base_folder", "check", "weights_of"), "checkpoints")
_HOME |= dict.fromkeys(("device_of", "folder", "names"), "model_names")


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module(f"workbench.models.{_HOME.get(name, 'loading')}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{did_you_mean(name, __dir__())}")


def __dir__() -> list[str]:
    return sorted(__all__)
