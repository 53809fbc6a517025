"""Recompute nothing; with passages cached after the system prompt, this is Full Reuse (FusionRAG, section 2.2.1)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from workbench.methods.select import Prompt, Select


@dataclass(frozen=True)
class None_(Select):
    """Only the question is computed."""

    def score(self, prompt: Prompt) -> Tensor:
        return torch.full((prompt.starts[-1],), -torch.inf)
