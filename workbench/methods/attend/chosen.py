"""Restrict attention of computed tokens and the answer to recomputed tokens; drop other passage tokens (SAM-KV)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from workbench.engine.attention_backends.listed_columns import ListedColumns
from workbench.methods.attend import Attend, Prompt


@dataclass(frozen=True)
class ChosenTokens(Attend):
    r"""Sparse context of recomputed tokens: the other passage tokens are not read.

    Every token attends to the system prompt, the recomputed tokens and the question, up to its own position.

    *Follows a reimplementation: `sam_kv.py` of ChuangtaoChen-TUM/KVPacket, which truncates its cache to these tokens.*
    Answers are decoded on contiguous KV, because their attention is not plainly causal.

    With the system tokens $S$, recomputed tokens $R$ and the question $Q$, a row $t$ attends to

    $$\{ u \le t : u \in S \cup R \cup Q \}$$
    """

    answer = True

    def plan(self, prompt: Prompt, rows: Tensor, scores: Tensor | None) -> dict[str, Any]:
        kept = torch.zeros(len(prompt), dtype=torch.bool)
        kept[: prompt.starts[min(self.system, len(prompt.context))]] = True
        kept[rows] = True
        return {"sees": ListedColumns(kept)}
