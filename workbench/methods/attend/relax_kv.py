"""Recomputed tokens attend to the part of the context that matters to the question (RelaxKV, arXiv:2609.33503)."""

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
    r"""A recomputed token sees its own passage, the system prompt, the tokens that score highest, and recomputed ones.

    share   of the document tokens that recomputed tokens may attend to, by the selector's scores; 1: all of them

    The question, and the answer behind it, see the whole context.

    *Follows a description: the paper's abstract says that targets and their context are both chosen by the query; its
    code is not public.* Its targets differ from layer to layer; here a token is recomputed in all layers or in none.
    That a token sees its own passage, as its cached state did, is our reading. On pages its rows are computed over a
    contiguous copy, as mask rules are.

    With the system tokens $S$, those that score highest $B$, the recomputed ones $R$ and the passage $P_t$ of a token,
    $t \in R$ attends to

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
