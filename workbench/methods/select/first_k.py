"""The first tokens of every block (EPIC's LegoLink, arXiv:2410.15332), or the last (KVLink, arXiv:2502.16002)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from workbench.methods.select import Prompt, Select, whole


@dataclass(frozen=True)
class FirstK(Select):
    r"""The nearer to its block's start, the sooner: blocks of any length lose their attention sink first.

    *Follows released code: `benchmarks_ours/evals/e2e/main.py` of DerekHJH/epic at 3204410,* where each passage begins
    with the token that begins a text, counted among the k; a ratio in place of a number is ours.

    k     at most this many tokens of a block, and just those without a ratio (LegoLink-k); None: as many as the
          ratio says, evenly over the blocks
    last  tokens at the block's end instead: with trained links there (`prepare=packet`), KVLink

    MEPIC (arXiv:2512.16822) recomputes the first page of every passage: `k=16` with vLLM's pages; pages here have 64.

    KVLink's released code, `src/data/titan_preprocessor.py` of UCSB-NLP-Chang/KVLink at 7400d92, has five links behind
    each passage, which see all before them. Its links differ with the passage's place, here all passages have the same;
    it fine-tunes all weights with them, here `workbench tune --links 5 --mode block` trains the links alone, or with
    `--lora-rank` an adapter beside them.

    $$s_t = -(t - \mathrm{start}(B(t)))$$
    """

    k: int | None = whole(None, "how many tokens at a block's start, 1 or more", least=1)
    last: bool = False

    def score(self, prompt: Prompt) -> Tensor:
        end = prompt.starts[-1]
        block = prompt.block_of[:end]
        offset = torch.arange(end) - torch.tensor(prompt.starts)[block]
        if self.last:
            offset = torch.tensor([len(one) for one in prompt.context])[block] - 1 - offset
        return -offset.float() if self.k is None else (-offset.float()).masked_fill(offset >= self.k, -torch.inf)
