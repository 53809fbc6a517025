"""Rank keys by the mean and by the maximum of the attention they receive (CompactAttention, figure 2a).

Also BFLA's bound on the output error that dropped tiles cause in a head, and the true error (section 6, equation 30).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from workbench.core.errors import BadInput
from workbench.engine.forward import all_rows, prefill_many
from workbench.methods.sparse import Sparse
from workbench.metrics.tiles.sparsity import scale_queries
from workbench.metrics.tiles.tile_states import States


@dataclass(frozen=True)
class Rankings:
    """Attention of the last queries of a prompt to the N keys before them, in one query head."""

    layer: int
    head: int
    mean: Tensor  #: [N] mean over the queries
    peak: Tensor  #: [N] maximum over the queries

    def largest(self, budget: float) -> tuple[Tensor, Tensor]:
        """Return the share `budget` of the keys with the largest mean, and with the largest peak: masks [N] bool."""
        count = max(1, round(budget * len(self.mean)))
        chosen = []
        for values in (self.mean, self.peak):
            mask = torch.zeros(len(values), dtype=torch.bool)
            mask[values.topk(count).indices.cpu()] = True
            chosen.append(mask)
        return chosen[0], chosen[1]

    def missed_share(self, budget: float) -> float:
        """Return the share of the keys largest by peak that are not among those largest by mean."""
        by_mean, by_peak = self.largest(budget)
        return float((by_peak & ~by_mean).sum() / by_peak.sum())


def rankings(states: States, window: int) -> list[Rankings]:
    """Rank the keys before the last `window` queries, per layer and query head. Raises BadInput if no key is left."""
    tokens = len(states)
    if not 0 < window < tokens:
        raise BadInput(f"window is {window}: between 1 and {tokens - 1} rows of {tokens} tokens leave keys to rank")
    ranked, rows = [], torch.arange(tokens - window, tokens)
    for layer in states.layers:
        queries, keys = states.queries[layer][:, -window:].float(), states.keys[layer].float()
        ahead = (torch.arange(tokens) > rows[:, None]).to(keys.device)
        for head, query in enumerate(queries):
            logits = query @ keys[head // (states.heads // states.kv_heads)].mT * query.shape[-1] ** -0.5
            mass = logits.masked_fill(ahead, -torch.inf).softmax(-1)[:, : tokens - window]
            ranked.append(Rankings(layer, head, mass.mean(0), mass.amax(0)))
    return ranked


@dataclass(frozen=True)
class HeadBound:
    """Share of the causal pairs that one head keeps, |O - O_s| and its bound, both over |O_s| (Frobenius norms)."""

    density: float
    error: float
    bound: float


def head_bound(logits: Tensor, values: Tensor, kept: Tensor) -> HeadBound:
    """Compare one head's output under `kept` [T, T] bool with that under the causal mask.

    `logits` [T, T], `values` [T, D]. With Z the kept pairs, Z_s the causal ones and D, D_s their row sums, the bound is
    (|D⁻¹ D_s - I| |Z| + |Z - Z_s|) |A| |V| with A of equation 28, under the causal mask. (The brace under the paper's
    last A omits the mask; with future pairs the bound still holds, but is vacuous.) Raises BadInput if a row keeps
    nothing.
    """
    causal = torch.ones_like(kept).tril()
    kept = kept & causal
    if not bool(kept.any(1).all()):
        raise BadInput(f"row {int((~kept.any(1)).nonzero()[0])} keeps no pair: its output is not defined")
    logits, values = logits.double().masked_fill(~causal, -torch.inf), values.double()
    exact = (logits - logits.amax(1, keepdim=True)).exp()
    over = exact * kept
    sums, left = exact.sum(1, keepdim=True), over.sum(1, keepdim=True)
    attention = exact / sums
    dense, sparse = attention @ values, over / left @ values
    alpha = (sums / left - 1).norm() * kept.sum().sqrt() + (causal & ~kept).sum().sqrt()
    bound, size = alpha * attention.norm() * values.norm(), dense.norm()
    density = float(kept.sum() / causal.sum())
    return HeadBound(density, float((sparse - dense).norm() / size), float(bound / size))


def error_bounds(
    model: PreTrainedModel, tokens: Tensor, method: Sparse, thresholds: Sequence[float], layer: int
) -> list[dict[str, Any]]:
    """Measure each query head of a layer at each threshold: records {threshold, head, density, error, bound}."""
    request = all_rows(model, tokens, return_queries=(layer,))
    (output,) = prefill_many(model, [request], logits_to_keep=1)
    queries, keys, values = scale_queries(model, layer, output), request.kv.keys[layer], request.kv.values[layer]
    rows, group = torch.arange(len(tokens), device=keys.device), len(queries) // len(keys)
    masks = {at: method.with_threshold(at)(queries, keys, rows).visible(len(rows), len(rows)) for at in thresholds}
    records = []
    for head, query in enumerate(queries):
        logits = query.double() @ keys[head // group].double().mT * query.shape[-1] ** -0.5
        for at, kept in masks.items():
            measured = head_bound(logits, values[head // group], kept[head])
            records.append({"threshold": at, "head": head, **vars(measured)})
    return records
