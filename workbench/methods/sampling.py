"""How an answer is generated: its length, how its tokens are drawn, and what ends it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from workbench.core.errors import BadInput
from workbench.core.utils import annotations
from workbench.engine.decoding import check_options


@dataclass(frozen=True)
class SamplingParams:
    """Options of `engine.decoding.decode` for a batch of requests; vLLM has them under this name.

    max_new_tokens  most tokens of an answer
    temperature     0: the likeliest token; above: drawn from the `top_p` nucleus
    seed            of the draws, one number or one per request
    stop            strings that end an answer
    """

    max_new_tokens: int = 64
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | Sequence[int] = 0
    stop: str | Sequence[str] = ()

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings as a tuple."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    def seeds(self, requests: int) -> list[int]:
        """Return the seed of every request. BadInput for another number of seeds than of requests."""
        seeds = [self.seed] * requests if isinstance(self.seed, int) else list(self.seed)
        if len(seeds) != requests:
            raise BadInput(f"{len(seeds)} seeds for {requests} requests: give one for each")
        return seeds

    def check(self, tokenizer: Any) -> None:
        """Raise BadInput for the first option that is not allowed, or needs a tokenizer where there is none."""
        annotations.check("seed", self.seed, int | Sequence[int])
        annotations.check("stop", self.stop, str | Sequence[str])
        stops = (self.stop,) if isinstance(self.stop, str) else self.stop
        check_options(self.max_new_tokens, self.temperature, self.top_p, stops, tokenizer)
