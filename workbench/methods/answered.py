"""What answering prompts returns: the answers, and what they took."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from torch import Tensor

from workbench.core.plan import Pass
from workbench.methods import ReadyRequest
from workbench.methods.request_report import Receipt


@dataclass(frozen=True)
class Generation:
    """An answer, and what it took to compute."""

    tokens: tuple[int, ...]
    text: str  #: up to the stop string
    rows_computed: int  #: tokens of the prompt
    rows_reused: int
    ttft: float = field(compare=False)  #: seconds from the call to the first tokens of its batch
    passes: tuple[Pass, ...]  #: all that was computed up to the first token
    receipt: Receipt | None = field(default=None, compare=False)  #: blocks reused, missed and why, times
    alone: float | None = field(default=None, compare=False)  #: seconds to its first token, where it was computed alone

    def __repr__(self) -> str:
        took = f"{self.rows_computed} computed, {self.rows_reused} reused"
        return f"Generation({self.text!r}, {len(self.tokens)} tokens; of the prompt {took}; ttft={self.ttft:.3g})"


@dataclass(frozen=True)
class Answered:
    """A batch that was answered.

    logits  [V] behind every prompt
    engine  that answered, and why it did
    force   predicts given answers token by token, as decoding would see them: logits [A, V] behind each of their tokens
            but the last; None where no pages hold the requests any more, or not as many tokens
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
        """Every request with its KV, which holds its prompt and may hold what was decoded behind it.

        Requests over pages are copied out of them when this is first read.
        """
        return list(self.read())
