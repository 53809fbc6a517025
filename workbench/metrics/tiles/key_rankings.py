"""Keys ranked by the mean and by the maximum of what queries attend to them (CompactAttention, figure 2a)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from workbench.core.errors import BadInput
from workbench.metrics.tiles.tile_states import States


@dataclass(frozen=True)
class Rankings:
    """Attention of the last rows of a prompt to the N keys before them, of one query head."""

    layer: int
    head: int
    mean: Tensor  # [N] over the rows
    peak: Tensor  # [N] largest of any row

    def largest(self, budget: float) -> tuple[Tensor, Tensor]:
        """Return which keys are among the share `budget` with the largest mean, and the largest peak: [N] bool each."""
        count = max(1, round(budget * len(self.mean)))
        chosen = []
        for values in (self.mean, self.peak):
            mask = torch.zeros(len(values), dtype=torch.bool)
            mask[values.topk(count).indices.cpu()] = True
            chosen.append(mask)
        return chosen[0], chosen[1]

    def missed(self, budget: float) -> float:
        """Return the share of the keys largest by peak that are not among those largest by the mean."""
        by_mean, by_peak = self.largest(budget)
        return float((by_peak & ~by_mean).sum() / by_peak.sum())


def rankings(states: States, window: int) -> list[Rankings]:
    """Rank the keys before the last `window` rows, a layer and query head at a time. BadInput where none are left."""
    tokens = len(states)
    if not 0 < window < tokens:
        raise BadInput(f"window is {window}: between 1 and {tokens - 1} rows of {tokens} tokens leave keys to rank")
    found, rows = [], torch.arange(tokens - window, tokens)
    for layer in states.layers:
        queries, keys = states.queries[layer][:, -window:].float(), states.keys[layer].float()
        ahead = (torch.arange(tokens) > rows[:, None]).to(keys.device)
        for head, query in enumerate(queries):
            logits = query @ keys[head // (states.heads // states.kv_heads)].mT * query.shape[-1] ** -0.5
            mass = logits.masked_fill(ahead, -torch.inf).softmax(-1)[:, : tokens - window]
            found.append(Rankings(layer, head, mass.mean(0), mass.amax(0)))
    return found
