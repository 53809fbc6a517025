"""Attention rules: what computed rows attend to, if not everything before them; one rule a file, listed by `names`.

A rule is called once a request, with the rows and the selector's scores, and returns fields of the `Plan`: a mask rule
(`sees`) or an attention `backend`. A rule imports its types from here.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from workbench.core.blocks import Prompt
from workbench.methods import registry

__all__ = ["Attend", "Prompt", "named", "names"]


@dataclass(frozen=True, kw_only=True)
class Attend:
    """Base class of attention rules.

    system  number of leading blocks that are not passages
    weighs  whether it needs the scores of a selector
    answer  whether it also restricts tokens of the answer, which are then decoded on contiguous caches
    """

    weighs: ClassVar[bool] = False
    answer: ClassVar[bool] = False
    system: int = registry.system_blocks()

    def __post_init__(self) -> None:
        registry.check_options(self)

    def plan(self, prompt: Prompt, rows: Tensor, scores: Tensor | None) -> dict[str, Any]:
        """Return fields of `Plan` for `rows` [R], the question's among them; `scores` [T] of the context."""
        raise NotImplementedError


def names() -> list[str]:
    """Return the names of all rules."""
    return registry.names(__name__)


def named(spec: str) -> Attend:
    """Return a rule from `ape` or `ape(temperature=0.8)`."""
    made: Attend = registry.made(__name__, spec)
    return made
