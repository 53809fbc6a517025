"""The interface of methods, and sampling parameters.

A method is a frozen dataclass. `begin` turns a batch of prompts into requests that are ready for the forward pass of
their first token.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor
from transformers import PreTrainedModel

from workbench.core.blocks import Prompt
from workbench.core.errors import BadInput
from workbench.core.plan import Pass
from workbench.core.utils import annotations
from workbench.engine.chunked import prefill_chunked_many
from workbench.engine.decoding import check_options
from workbench.engine.forward import PrefillRequest, Wait, prefill_many
from workbench.store import Store


@dataclass(frozen=True)
class SamplingParams:
    """Options of `engine.decoding.decode` for a batch of requests, named as in vLLM.

    max_new_tokens  maximum number of answer tokens
    temperature     0: greedy; above 0: sampled from the `top_p` nucleus
    seed            sampling seed, one number or one per request
    stop            strings that end an answer
    """

    max_new_tokens: int = 64
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | Sequence[int] = 0
    stop: str | Sequence[str] = ()

    @property
    def stops(self) -> tuple[str, ...]:
        """Stop strings as a tuple."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    def seeds(self, requests: int) -> list[int]:
        """Return the seed of every request. Raises BadInput if the number of seeds is not that of requests."""
        seeds = [self.seed] * requests if isinstance(self.seed, int) else list(self.seed)
        if len(seeds) != requests:
            raise BadInput(f"{len(seeds)} seeds for {requests} requests: give one for each")
        return seeds

    def check(self, tokenizer: Any) -> None:
        """Raise BadInput for the first option that is invalid, or needs a tokenizer if there is none."""
        annotations.check("seed", self.seed, int | Sequence[int])
        annotations.check("stop", self.stop, str | Sequence[str])
        stops = (self.stop,) if isinstance(self.stop, str) else self.stop
        check_options(self.max_new_tokens, self.temperature, self.top_p, stops, tokenizer)


@dataclass(frozen=True)
class ReadyRequest:
    """One request, ready for its last forward pass, with its cost so far."""

    request: PrefillRequest  #: the logits of its last row give the first token
    passes: tuple[Pass, ...]  #: forward passes up to the first token, including the last one
    computed: int  #: tokens of the prompt that are computed for the answer, in any pass
    reused: int  #: tokens whose keys and values come from cached blocks
    chunk: int | None = None  #: query tokens per chunk of the last forward pass; None: no chunking


class Method(Protocol):
    """Interface of methods, implemented in `workbench.methods.modes`."""

    def check(self, model: PreTrainedModel, prompts: Sequence[Prompt]) -> None:
        """Raise BadInput if the method cannot run on the model (possibly on the meta device) or the prompts."""

    def begin(
        self, model: PreTrainedModel, prompts: Sequence[Prompt], store: Store | None = None, reserve: int = 0
    ) -> list[ReadyRequest]:
        """Prepare prompts for their last forward pass.

        `store` keeps cached blocks between calls (None: for this call only); `reserve` is capacity for new tokens.
        """


def finish(model: PreTrainedModel, ready: Sequence[ReadyRequest], waits: Sequence[Wait | None] = ()) -> list[Tensor]:
    """Run the last forward pass of requests of one method, or its chunks; return logits [V] after each prompt.

    `waits` are those of `prefill_many`, for requests without chunks.
    """
    requests = [each.request for each in ready]
    chunk = ready[0].chunk if ready else None
    outputs = prefill_chunked_many(model, requests, chunk, 1) if chunk else prefill_many(model, requests, 1, waits)
    return [output.logits[-1] for output in outputs if output.logits is not None]
