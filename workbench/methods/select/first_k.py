"""The first tokens of every block (EPIC's LegoLink, arXiv:2410.15332)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from workbench.methods.select import Prompt, Select, whole


@dataclass(frozen=True)
class FirstK(Select):
    r"""The nearer to its block's start, the sooner: blocks of any length lose their attention sink first.

    k   never more than this many tokens of a block, and just those without a ratio (LegoLink-k); None: as many as the
        ratio says, evenly over the blocks

    $$s_t = -(t - \mathrm{start}(B(t)))$$
    """

    k: int | None = whole(None, "how many tokens at a block's start, 1 or more", least=1)

    def score(self, prompt: Prompt) -> Tensor:
        end = prompt.starts[-1]
        offset = torch.arange(end) - torch.tensor(prompt.starts)[prompt.block_of[:end]]
        return -offset.float() if self.k is None else (-offset.float()).masked_fill(offset >= self.k, -torch.inf)
