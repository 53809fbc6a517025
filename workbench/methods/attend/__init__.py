"""What computed rows attend to, where that is not all before them: one rule a file, found by `names`.

A rule is asked once a request, with the rows and the scores of the selector, and answers with fields of the `Plan`: a
mask rule (`sees`), or what carries the attention out (`backend`). A rule imports its types from here.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from workbench.core.blocks import Prompt
from workbench.methods import registry

__all__ = ["Attend", "Prompt", "named", "names"]


@dataclass(frozen=True, kw_only=True)
class Attend:
    """Says what rows attend to. `system`: blocks at the front that are no passages.

    weighs  whether it needs the scores of a selector
    answer  whether tokens of the answer do not see all that is before them: they are decoded on contiguous caches then
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
