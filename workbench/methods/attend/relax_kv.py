"""Recomputed tokens attend to the part of the context that is relevant to the question (RelaxKV, arXiv:2609.33503)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from workbench.engine.attention_backends.listed_columns import OwnOrListed
from workbench.methods import registry
from workbench.methods.attend import Attend, Prompt
from workbench.methods.select import choose


@dataclass(frozen=True)
class RelaxKv(Attend):
    r"""A recomputed token attends to its own passage, the system prompt, the highest-scored and the recomputed tokens.

    share   of the document tokens that recomputed tokens may attend to, by the selector's scores; 1: all of them

    The question and the answer attend to the whole context.

    *Follows a description: the paper's abstract says that targets and their context are both chosen by the query; its
    code is not public.* Its targets differ by layer; here a token is recomputed in all layers or in none. Attention to
    the token's own passage, as in its cached state, is our interpretation. Over pages, rows are computed on a
    contiguous copy, as for any mask rule.

    With the system tokens $S$, the highest-scored tokens $B$, the recomputed tokens $R$ and the passage $P_t$ of a
    token, $t \in R$ attends to

    $$\{ u \le t : u \in S \cup B \cup R \cup P_t \}$$
    """

    weighs = True

    share: float = registry.share(0.3)

    def plan(self, prompt: Prompt, rows: Tensor, scores: Tensor | None) -> dict[str, Any]:
        assert scores is not None
        end = prompt.starts[-1]
        kept = torch.zeros(end, dtype=torch.bool)
        kept[: prompt.starts[min(self.system, len(prompt.context))]] = True
        kept[choose(scores, prompt, self.share, system=self.system)] = True
        kept[rows[rows < end]] = True
        return {"sees": OwnOrListed(kept, prompt.block_of[:end])}
