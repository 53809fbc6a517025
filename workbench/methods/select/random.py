"""Select tokens at random: the baseline for any method at the same ratio."""

from dataclasses import dataclass
from hashlib import sha256

import torch
from torch import Tensor

from workbench.methods.select import Prompt, Select, option_where


@dataclass(frozen=True)
class RandomTokens(Select):
    """A uniform sample that depends on `seed` and the prompt's tokens, not on the batch or the order of calls."""

    seed: int = option_where(0, "it is a whole number", lambda value: type(value) is int)

    def score(self, prompt: Prompt) -> Tensor:
        name = f"{self.seed} {' '.join(block.key for block in prompt.blocks)}"
        seed = int.from_bytes(sha256(name.encode()).digest()[:8], "big") >> 1
        return torch.rand(prompt.starts[-1], generator=torch.Generator().manual_seed(seed))
