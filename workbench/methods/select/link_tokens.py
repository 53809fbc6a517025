"""The links behind each passage, trained to read all before them, are all that is recomputed (KVLink, 2502.16002)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from workbench.core.errors import BadInput
from workbench.methods.select import KV, Prompt, Select
from workbench.models.weights.soft_tokens import soft_tokens


@dataclass(frozen=True)
class LinkTokens(Select):
    r"""A few soft tokens behind each passage join it to those before it; the question reads the links.

    `workbench tune --links 5 --mode block` trains them, and `prepare=packet` puts them there. No ratio limits them.

    *Follows the paper and its released code's five links; there all weights are fine-tuned with them, here the links,
    and with `--lora-rank` an adapter.* Positions are those of the prompt, links included.

    With the links $L_i$ of passage $i$, the recomputed rows are

    $$R = \bigcup_i L_i$$
    """

    def scores(self, model: PreTrainedModel, prompts: Sequence[Prompt], kvs: Sequence[KV]) -> list[Tensor]:
        soft = soft_tokens(model)
        if soft is None or not soft.links:
            raise BadInput(f"{model.config.name_or_path or 'this model'} has no links: `workbench tune --links 5` does")
        first = soft.ids[2][0]
        tokens = (prompt.tokens[: prompt.starts[-1]] for prompt in prompts)
        return [torch.where(each >= first, torch.inf, -torch.inf) for each in tokens]
