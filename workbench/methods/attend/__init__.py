"""Attention rules: what computed tokens attend to, other than all preceding tokens; one per file, listed by `names`.

A rule is called once per request, with the rows and the selector's scores, and returns fields of the `Plan`: a mask
rule (`sees`) or an attention `backend`. A rule imports its types from here.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from workbench.core.blocks import Prompt
from workbench.methods import registry

__all__ = ["Attend", "Prompt", "from_spec", "names"]


@dataclass(frozen=True, kw_only=True)
class Attend:
    """Base class of attention rules.

    system  number of leading blocks that are not passages
    weighs  whether it needs the scores of a selector
    answer  whether it also restricts answer tokens, which are then decoded on contiguous KV
    """

    weighs: ClassVar[bool] = False
    answer: ClassVar[bool] = False
    system: int = registry.system_blocks()

    def __post_init__(self) -> None:
        registry.check_options(self)

    def plan(self, prompt: Prompt, rows: Tensor, scores: Tensor | None) -> dict[str, Any]:
        """Return fields of `Plan` for `rows` [R], which include the question; `scores` [T] are those of the context."""
        raise NotImplementedError


def names() -> list[str]:
    """Return the names of all rules."""
    return registry.names(__name__)


def from_spec(spec: str) -> Attend:
    """Return a rule from `ape` or `ape(temperature=0.8)`."""
    made: Attend = registry.make_policy(__name__, spec)
    return made
