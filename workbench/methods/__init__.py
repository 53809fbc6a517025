"""Methods: which keys and values of a prompt are computed, and which come from cached blocks.

A method is a frozen dataclass. `begin` turns a batch of prompts into requests that are ready for the forward pass of
their first token. The methods are `Full`, `Reuse` and `Superposition`. Published block reuse systems are settings of
`Reuse`: preprocessing, selector, positions.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from workbench.core.errors import did_you_mean

if TYPE_CHECKING:
    from workbench.methods.method import Method as Method
    from workbench.methods.method import ReadyRequest as ReadyRequest
    from workbench.methods.method import finish as finish

POLICIES = ("prepare", "select", "correct", "attend", "sparse")  # kinds of policies, one folder each
_LAZY = ("Method", "ReadyRequest", "finish")  # imported on first use: `--help` must not import torch


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module("workbench.methods.method"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{did_you_mean(name, _LAZY)}")
