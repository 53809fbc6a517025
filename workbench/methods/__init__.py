"""How a prompt gets its keys and values: what of it is computed, and what comes from cached blocks.

A method is a frozen dataclass; `begin` turns a batch of prompts into requests that are ready for the forward pass which
gives their first token. `Full`, `Reuse` and `Superposition` are the methods; what differs between the published systems
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
    chunk: int | None = None  # the last pass is cut into passes of so many rows


class Method(Protocol):
    """A way to carry out prompts."""

    def begin(
        self, model: PreTrainedModel, prompts: Sequence[Prompt], store: Store | None = None, reserve: int = 0
    ) -> list[ReadyRequest]:
        """`store` keeps cached blocks between calls (None: for this call only); `room` is left for new tokens."""


def finish(model: PreTrainedModel, starts: Sequence[ReadyRequest]) -> list[Tensor]:
    """Logits [V] behind the prompt of every request of one method: the last forward pass, or its chunks."""
    requests = [start.request for start in starts]
    chunk = starts[0].chunk if starts else None
    steps = prefill_many(model, requests, 1) if chunk is None else prefill_chunked_many(model, requests, chunk, 1)
    return [output.logits[-1] for output in steps if output.logits is not None]
