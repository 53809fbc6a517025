"""Kernels beside what a user would pick instead, on one card in one run: right first, then fast.

`check` holds a kernel to its reference, `timing` takes times, `workloads` says what is measured, `peers` what it is
measured against, `run` puts it together. `whole_model` and `operations` do the same for whole models.
"""

import pkgutil
from importlib import import_module
from typing import Any

from workbench import kernels
from workbench.core.errors import BadInput

MODELS = ("question", "recompute", "prefill", "decode")  # of whole models: `operations`


def names() -> list[str]:
    """The kernels."""
    found = (module.name for module in pkgutil.iter_modules(kernels.__path__))
    return sorted(name for name in found if not name.startswith("_"))


def named(name: str) -> Any:
    """A kernel's module. BadInput for an unknown name."""
    if name not in names():
        raise BadInput(f"there is no kernel {name!r}: it is one of {', '.join(names())}")
    return import_module(f"workbench.kernels.{name}")
