"""Every token is recomputed, those of the system block too: full attention, through the cache."""

from dataclasses import dataclass

import torch
from torch import Tensor

from workbench.methods.select import Prompt, Select


@dataclass(frozen=True)
class All(Select):
    """All tokens, at any ratio: nothing of the cache is read, so the answer is exactly that of full attention."""

    def score(self, prompt: Prompt) -> Tensor:
        return torch.full((prompt.starts[-1],), torch.inf)
