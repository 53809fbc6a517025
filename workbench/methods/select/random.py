"""Tokens drawn at random: what any method must beat at the same ratio."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

import torch
from torch import Tensor
from transformers import PreTrainedModel

from workbench.core.blocks import Prompt
from workbench.core.errors import BadInput
from workbench.core.kv import KV
from workbench.methods.select import Select


@dataclass(frozen=True)
class RandomTokens(Select):
    """A uniform draw that depends on `seed` and on the prompt's tokens, not on the batch or the order of calls."""

    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise BadInput(f"seed is {self.seed!r}: it is a whole number")

    def scores(self, model: PreTrainedModel, prompts: Sequence[Prompt], kvs: Sequence[KV]) -> list[Tensor]:
        return [torch.rand(prompt.starts[-1], generator=self._draws(prompt)) for prompt in prompts]

    def _draws(self, prompt: Prompt) -> torch.Generator:
        name = f"{self.seed} {' '.join(block.key for block in prompt.blocks)}"
        return torch.Generator().manual_seed(int.from_bytes(sha256(name.encode()).digest()[:8], "big") >> 1)
