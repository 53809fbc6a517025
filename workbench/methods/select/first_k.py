"""The first tokens of every block (EPIC's LegoLink, arXiv:2410.15332)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from workbench.core.blocks import Prompt
from workbench.core.errors import BadInput
from workbench.core.kv import KV
from workbench.methods.select import Select


@dataclass(frozen=True)
class FirstK(Select):
    """The nearer to its block's start, the sooner: blocks of any length lose their attention sink first.

    k   never more than this many tokens of a block, and just those without a ratio (LegoLink-k); None: as many as the
        ratio says, evenly over the blocks
    """

    k: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.k is not None and (isinstance(self.k, bool) or not isinstance(self.k, int) or self.k < 1):
            raise BadInput(f"k is {self.k!r}: how many tokens at a block's start, 1 or more")

    def scores(self, model: PreTrainedModel, prompts: Sequence[Prompt], kvs: Sequence[KV]) -> list[Tensor]:
        return [self._scores(prompt) for prompt in prompts]

    def _scores(self, prompt: Prompt) -> Tensor:
        end = prompt.starts[-1]
        offset = torch.arange(end) - torch.tensor(prompt.starts)[prompt.block_of[:end]]
        return -offset.float() if self.k is None else (-offset.float()).masked_fill(offset >= self.k, -torch.inf)
