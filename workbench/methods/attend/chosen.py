"""Computed rows, and the answer, attend to recomputed tokens alone: the rest of the passages is dropped (SAM-KV)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from workbench.engine.attention_backends.listed_columns import Listed
from workbench.methods.attend import Attend, Prompt


@dataclass(frozen=True)
class ChosenTokens(Attend):
    r"""A sparse context of fresh tokens: what is not recomputed is not read.

    Every row sees the system prompt, the recomputed tokens and the question, as far as they are before it.

    *Follows a reimplementation: `sam_kv.py` of ChuangtaoChen-TUM/KVPacket, which cuts its cache down to these tokens.*
    Answers come from contiguous caches: their rows do not see all that is before them.

    With the system tokens $S$, recomputed tokens $R$ and the question $Q$, a row $t$ attends to

    $$\{ u \le t : u \in S \cup R \cup Q \}$$
    """

    answer = True

    def plan(self, prompt: Prompt, rows: Tensor, scores: Tensor | None) -> dict[str, Any]:
        kept = torch.zeros(len(prompt), dtype=torch.bool)
        kept[: prompt.starts[min(self.system, len(prompt.context))]] = True
        kept[rows] = True
        return {"sees": Listed(kept)}
