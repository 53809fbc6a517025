"""Check kernels against their references, and time them against baselines, on one GPU in one run.

`kernels.check` compares a kernel with its reference, `timing` takes times, `kernels.page_workloads` and
`kernels.choices` have the inputs, `baselines` the alternatives, and `run` builds the report. `models` does the same for
whole models.
"""

import pkgutil
from importlib import import_module
from typing import Any

from workbench import kernels as operations
from workbench.core.errors import BadInput

MODELS = ("question", "recompute", "prefill", "chunked", "decode", "encode")  # of whole models, by `operations`
CHUNKS = ("chunk_kernels", "chunk_choices", "chunk_attention")  # of several kernels and methods, by `chunk_attention`


def names() -> list[str]:
    """Return the names of all kernels."""
    modules = (module.name for module in pkgutil.iter_modules(operations.__path__))
    return sorted(name for name in modules if not name.startswith("_"))


def workload_module(name: str) -> Any:
    """Return a kernel's module. Raises BadInput for an unknown name."""
    if name not in names():
        raise BadInput(f"there is no kernel {name!r}: it is one of {', '.join(names())}")
    return import_module(f"workbench.kernels.{name}")
