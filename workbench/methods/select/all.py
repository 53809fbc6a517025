"""Every token is recomputed, those of the system block too: full attention, through the cache."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from workbench.core.blocks import Prompt
from workbench.core.kv import KV
from workbench.methods.select import Select


@dataclass(frozen=True)
class All(Select):
    """All tokens, at any ratio: nothing of the cache is read, so the answer is exactly that of full attention."""

    def scores(self, model: PreTrainedModel, prompts: Sequence[Prompt], kvs: Sequence[KV]) -> list[Tensor]:
        return [torch.full((prompt.starts[-1],), torch.inf) for prompt in prompts]
