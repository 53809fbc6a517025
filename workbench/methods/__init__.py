"""How a prompt gets its keys and values: what of it is computed, and what comes from cached blocks.

A method is a frozen dataclass. `begin` makes requests of a batch of prompts, ready for the forward pass that gives
their first token. `Full`, `Reuse` and `Superposition` are the methods; what differs between the published systems
that reuse blocks are the preparation, the selection and the positions that `Reuse` is given.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from workbench.core.errors import meant

if TYPE_CHECKING:
    from workbench.methods.method import Method as Method
    from workbench.methods.method import ReadyRequest as ReadyRequest
    from workbench.methods.method import finish as finish

POLICIES = ("prepare", "select", "correct", "attend", "sparse")  # kinds, each a folder

# Imported when they are asked for: names of methods are known, as for `--help`, without torch.

_LAZY = ("Method", "ReadyRequest", "finish")


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module("workbench.methods.method"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{meant(name, _LAZY)}")
