"""Select the first tokens of each block (EPIC's LegoLink, arXiv:2410.15332), or the last (KVLink, arXiv:2502.16002)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from workbench.methods.select import Prompt, Select, integer_option


@dataclass(frozen=True)
class FirstK(Select):
    r"""Tokens nearest to the start of their block are selected first, which removes the attention sink of every block.

    *Follows released code: `benchmarks_ours/evals/e2e/main.py` of DerekHJH/epic at 3204410,* where each passage begins
    with a BOS token, which is counted among the k; the ratio instead of a number is ours.

    k     maximum number of tokens per block, which are all selected without a ratio (LegoLink-k); None: the ratio
          decides, evenly over the blocks
    last  select tokens at the block's end instead: with trained links there (`prepare=packet`), this is KVLink

    MEPIC (arXiv:2512.16822) recomputes the first page of every passage: `k=16` for vLLM's pages; pages here have 64.

    KVLink's released code, `src/data/titan_preprocessor.py` of UCSB-NLP-Chang/KVLink at 7400d92, puts five links after
    each passage, which attend to all preceding tokens. Its links differ by the index of the passage; here all passages
    share them. It fine-tunes all weights with them; here `workbench tune --links 5 --mode block` trains only the links,
    or with `--lora-rank` also an adapter.

    $$s_t = -(t - \mathrm{start}(B(t)))$$
    """

    k: int | None = integer_option(None, "how many tokens at a block's start, 1 or more", least=1)
    last: bool = False

    def score(self, prompt: Prompt) -> Tensor:
        end = prompt.starts[-1]
        block = prompt.block_of[:end]
        offset = torch.arange(end) - torch.tensor(prompt.starts)[block]
        if self.last:
            offset = torch.tensor([len(one) for one in prompt.context])[block] - 1 - offset
        return -offset.float() if self.k is None else (-offset.float()).masked_fill(offset >= self.k, -torch.inf)
