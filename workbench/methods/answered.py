"""Results of answering prompts: answers and costs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from torch import Tensor

from workbench.core.plan import Pass
from workbench.methods import ReadyRequest
from workbench.methods.request_report import Receipt


@dataclass(frozen=True)
class Generation:
    """An answer and its cost."""

    tokens: tuple[int, ...]
    text: str  #: the answer up to the stop string
    rows_computed: int  #: computed tokens of the prompt
    rows_reused: int
    ttft: float = field(compare=False)  #: seconds from the call to the first tokens of its batch
    passes: tuple[Pass, ...]  #: forward passes up to the first token
    receipt: Receipt | None = field(default=None, compare=False)  #: reused blocks, misses with their reasons, times
    alone: float | None = field(default=None, compare=False)  #: seconds to its first token if computed alone

    def __repr__(self) -> str:
        took = f"{self.rows_computed} computed, {self.rows_reused} reused"
        return f"Generation({self.text!r}, {len(self.tokens)} tokens; of the prompt {took}; ttft={self.ttft:.3g})"


@dataclass(frozen=True)
class Answered:
    """Result of answering a batch.

    logits  [V] after every prompt
    engine  name of the engine, and why it was selected
    force   runs teacher-forced answers: logits [A - 1, V] after each of their A tokens but the last; returns None if
            the requests are no longer in pages, or have too few pages
    """

    generations: list[Generation]
    logits: list[Tensor]
    engine: str = field(compare=False)
    read: Callable[[], Sequence[ReadyRequest]] = field(repr=False, compare=False)
    force: Callable[[Sequence[Sequence[int]]], list[Tensor] | None] = field(
        default=lambda answers: None, repr=False, compare=False
    )

    @cached_property
    def ready(self) -> list[ReadyRequest]:
        """The requests with their KV, which contains the prompt and perhaps the answer.

        Requests over pages are copied out of them on first access.
        """
        return list(self.read())
