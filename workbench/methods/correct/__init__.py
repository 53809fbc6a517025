"""Corrections of cached keys and values that are not recomputed; one per file, listed by `names`.

A correction is called once per request, in addition to the selector. It may write to the assembled cache (not to a
cached block), and may return a function that modifies the cache of each layer while rows are computed (`Plan.adjust`).
It reports its forward passes. A correction imports its types from here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from transformers import PreTrainedModel

from workbench.core.blocks import Prompt
from workbench.core.kv import KV
from workbench.core.plan import Adjust, Pass
from workbench.engine.full_context import write
from workbench.engine.pages.block_pages import BlockPages
from workbench.engine.pages.paged_prompt import Cached
from workbench.methods import registry

__all__ = ["KV", "Adjust", "Correct", "Correction", "Pass", "Prompt", "from_spec", "names", "write"]


@dataclass(frozen=True)
class Correction:
    """Result of a correction: the remaining work of one request.

    rows      [R] context tokens to recompute
    adjust    modifies each layer's cache while they are computed (`Plan.adjust`)
    passes    forward passes that the correction ran
    computed  number of context tokens that these computed in all layers
    """

    rows: Tensor
    adjust: Adjust | None = None
    passes: tuple[Pass, ...] = ()
    computed: int = 0


@dataclass(frozen=True, kw_only=True)
class Correct:
    """Base class of corrections of assembled caches.

    system   number of leading blocks whose cached KV is exact
    chooses  whether it selects tokens to recompute itself, by a ratio, if there is no selector
    IN_FULL  hint for users: why it may compute whole prompts, and which option increases reuse
    """

    chooses: ClassVar[bool] = False
    IN_FULL = ""

    system: int = registry.system_blocks()

    def __post_init__(self) -> None:
        registry.check_options(self)

    def __call__(
        self,
        model: PreTrainedModel,
        prompts: Sequence[Prompt],
        kvs: Sequence[KV],
        rows: Sequence[Tensor] | None,
        ratio: float | None,
    ) -> list[Correction]:
        """Correct the caches of a batch; `rows` [R] of each are recomputed (None: selected here by `ratio`)."""
        raise NotImplementedError

    def over_pages(self, blocks: BlockPages, prompt: Prompt, context: list[Cached]) -> bool:
        """Replace blocks of `context` by corrected, pinned ones in pages; return False if it needs an assembled cache.

        Blocks of `context` stay pinned in any case.
        """
        return False

    def passes(self, model: PreTrainedModel, prompt: Prompt) -> tuple[Pass, ...]:
        """Return the passes that it adds to every request before tokens are recomputed."""
        return ()


def names() -> list[str]:
    """Return the names of all corrections."""
    return registry.names(__name__)


def from_spec(spec: str) -> Correct:
    """Return a correction from `agent_kv_shift` or `kvcomm(threshold=0.5)`."""
    made: Correct = registry.make_policy(__name__, spec)
    return made
