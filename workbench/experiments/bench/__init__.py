"""Kernels beside their baselines, on one GPU in one run: right first, then fast.

`check` compares a kernel with its reference, `timing` takes times, `page_workloads` and `choices`
hold the inputs, `baselines` what a user would pick instead, and `run` makes the report. `whole_model` and `operations`
do the same for whole models.
"""

import pkgutil
from importlib import import_module
from typing import Any

from workbench import kernels as operations
from workbench.core.errors import BadInput

MODELS = ("question", "recompute", "prefill", "chunked", "decode", "encode")  # of whole models: `operations`
CHUNKS = ("chunk_kernels", "chunk_choices", "chunk_attention")  # several kernels and methods: `chunk_attention`


def names() -> list[str]:
    """List the kernels."""
    modules = (module.name for module in pkgutil.iter_modules(operations.__path__))
    return sorted(name for name in modules if not name.startswith("_"))


def named(name: str) -> Any:
    """Return a kernel's module. BadInput for an unknown name."""
    if name not in names():
        raise BadInput(f"there is no kernel {name!r}: it is one of {', '.join(names())}")
    return import_module(f"workbench.kernels.{name}")
