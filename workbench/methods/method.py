"""What a method is: how a prompt gets its keys and values.

A method is a frozen dataclass. `begin` makes requests of a batch of prompts, ready for the forward pass that gives
their first token. `Full`, `Reuse` and `Superposition` are the methods; what differs between the published systems
that reuse blocks are the preparation, the selection and the positions that `Reuse` is given.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor
from transformers import PreTrainedModel

from workbench.core.blocks import Prompt
from workbench.core.plan import Pass
from workbench.engine.chunked import prefill_chunked_many
from workbench.engine.forward import PrefillRequest, prefill_many
from workbench.store import Store


@dataclass(frozen=True)
class ReadyRequest:
    """One request, ready for its last forward pass, and what it takes to get there."""

    request: PrefillRequest  # the logits of its last row give the first token
    passes: tuple[Pass, ...]  # all that is computed up to the first token, the last pass included
    computed: int  # tokens of the prompt that some pass computes for the answer
    reused: int  # tokens whose keys and values come from cached blocks
    chunk: int | None = None  # rows of one pass of the last forward pass; None: all at once


class Method(Protocol):
    """How prompts get their keys and values: a file of `workbench.methods.modes`."""

    def begin(
        self, model: PreTrainedModel, prompts: Sequence[Prompt], store: Store | None = None, reserve: int = 0
    ) -> list[ReadyRequest]:
        """Make prompts ready for their last forward pass.

        `store` keeps cached blocks between calls (None: for this call only); `reserve` is capacity for new tokens.
        """


def finish(model: PreTrainedModel, ready: Sequence[ReadyRequest]) -> list[Tensor]:
    """Run the last forward pass, or its chunks: logits [V] behind the prompt of every request of one method."""
    requests = [each.request for each in ready]
    chunk = ready[0].chunk if ready else None
    outputs = prefill_chunked_many(model, requests, chunk, 1) if chunk else prefill_many(model, requests, 1)
    return [output.logits[-1] for output in outputs if output.logits is not None]
