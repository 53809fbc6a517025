"""Preprocessing policies: what a passage attends to when it is cached; one per file, listed by `names`.

A policy imports its types from here.
"""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

from transformers import PreTrainedModel

from workbench.core.blocks import Block, Prompt
from workbench.core.kv import KV
from workbench.methods import registry
from workbench.store import Store

__all__ = [
    "KV",
    "Block",
    "Prepare",
    "Prompt",
    "contexts",
    "few_neighbours_note",
    "from_spec",
    "names",
    "preceding_blocks",
    "split_by_prompt",
    "with_system",
]


def __dir__() -> list[str]:
    return sorted(__all__)


class Prepare(Protocol):
    """Caches the context blocks of prompts."""

    def __call__(self, model: PreTrainedModel, prompts: Sequence[Prompt], store: Store) -> list[list[KV]]:
        """Return the KV of every context block of every prompt: from `store`, or computed and stored there.

        Keys cover all tokens that a block attended to, so blocks of different policies never share a key.
        """


def names() -> list[str]:
    """Return the names of all preprocessing policies."""
    return registry.names(__name__)


def from_spec(spec: str, **given: Any) -> Prepare:
    """Return a preprocessing policy from its spec, such as `after_system` or `with_neighbours(n=4)`.

    `corpus=` is for policies that need one. Raises BadInput for an unknown name or option.
    """
    return registry.make_policy(__name__, spec, **given)


def with_system(prepared: Prepare, system: int) -> Prepare:
    """Return a policy with its option `system`, the number of leading system blocks, set if it has one."""
    made: Any = prepared
    return replace(made, system=system) if hasattr(made, "system") else prepared


def few_neighbours_note(prepared: Prepare | None, context: int | None, prompts: Sequence[Prompt]) -> str:
    """Return a warning about passages with fewer neighbours than requested, and issue it once; "" if there are none.

    `context` is the model's context length in tokens.
    """
    if prepared is None or not hasattr(prepared, "few_neighbours"):
        return ""
    if note := prepared.few_neighbours(context, prompts):
        warnings.warn(note, stacklevel=1)  # same source line for all, so Python shows each text once
    return str(note)


def contexts(prompts: Sequence[Prompt]) -> list[Block]:
    """Return the context blocks of all prompts, in order."""
    return [block for prompt in prompts for block in prompt.context]


def split_by_prompt(prompts: Sequence[Prompt], kvs: Sequence[KV]) -> list[list[KV]]:
    """Split the KV of all context blocks, in order, into one list per prompt."""
    rest = iter(kvs)
    return [[next(rest) for _ in prompt.context] for prompt in prompts]


def preceding_blocks(prompts: Sequence[Prompt], system: int) -> list[tuple[Block, ...]]:
    """Return the preceding blocks that each context block attends to under `after_system`.

    A passage attends to the first `system` blocks; a system block attends to those before it.
    """
    return [prompt.blocks[: min(i, system)] for prompt in prompts for i in range(len(prompt.context))]
