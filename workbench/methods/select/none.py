"""No token is recomputed: Full Reuse (FusionRAG, section 2.2.1)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from workbench.core.blocks import Prompt
from workbench.core.kv import KV
from workbench.methods.select import Select


@dataclass(frozen=True)
class None_(Select):
    """Only the question is computed."""

    def scores(self, model: PreTrainedModel, prompts: Sequence[Prompt], kvs: Sequence[KV]) -> list[Tensor]:
        return [torch.full((prompt.starts[-1],), -torch.inf) for prompt in prompts]
