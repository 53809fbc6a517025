"""Recomputed tokens attend to the part of the context that matters to the question (RelaxKV, arXiv:2609.33503)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from workbench.methods import registry
from workbench.methods.attend import Attend, Prompt
from workbench.methods.select import choose


@dataclass(frozen=True)
class RelaxKv(Attend):
    r"""A recomputed token sees the system prompt, the tokens that score best, and all that are recomputed; no others.

    share   of the document tokens that recomputed tokens may attend to, by the selector's scores; 1: all of them

    The question, and the answer behind it, see the whole context.

    *Follows a description: the paper's abstract says that targets and their context are both chosen by the query; its
    code is not public.* Its targets differ from layer to layer; here a token is recomputed in all layers or in none.
    On pages its rows are computed over a contiguous copy, as mask rules are.

    With the system tokens $S$, the best-scored tokens $B$ and the recomputed ones $R$, a token $t \in R$ attends to

    $$\{ u \le t : u \in S \cup B \cup R \}$$
    """

    weighs = True

    share: float = registry.share(0.3)

    def plan(self, prompt: Prompt, rows: Tensor, scores: Tensor | None) -> dict[str, Any]:
        assert scores is not None
        question, kept = prompt.starts[-1], torch.zeros(len(prompt), dtype=torch.bool)
        kept[: prompt.starts[min(self.system, len(prompt.context))]] = True
        kept[choose(scores, prompt, self.share, system=self.system)] = True
        kept[rows] = True

        def sees(row: Tensor, col: Tensor) -> Tensor:
            relevant = kept.to(col.device)[col.clamp(max=len(kept) - 1)]
            return (col <= row) & ((row >= question) | relevant)

        return {"sees": sees}
