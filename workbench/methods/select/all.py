"""Recompute every token, including the system block: full attention, through the cache."""

from dataclasses import dataclass

import torch
from torch import Tensor

from workbench.methods.select import Prompt, Select


@dataclass(frozen=True)
class All(Select):
    """Select all tokens, at any ratio: the cache is not read, so the answer is exactly that of full attention."""

    def score(self, prompt: Prompt) -> Tensor:
        return torch.full((prompt.starts[-1],), torch.inf)
