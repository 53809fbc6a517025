"""BFLA's bound on what left-out tiles do to a head's output, beside what they truly do (section 6, equation 30)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from workbench.core.errors import BadInput
from workbench.engine.forward import all_rows, prefill_many
from workbench.methods.sparse import Sparse
from workbench.metrics.tiles.sparsity import scaled


@dataclass(frozen=True)
class HeadBound:
    """Of one head: share of the causal pairs kept, |O - O_s| and its bound, both over |O_s| (Frobenius norms)."""

    density: float
    error: float
    bound: float


def head_bound(logits: Tensor, values: Tensor, kept: Tensor) -> HeadBound:
    """Compare one head's output under `kept` [T, T] bool with that under the causal mask.

    `logits` [T, T], `values` [T, D]. With Z the kept pairs, Z_s the causal ones and D, D_s the sums of their rows, the
    bound is (|D⁻¹ D_s - I| |Z| + |Z - Z_s|) |A| |V| with A of equation 28, under the causal mask. (The brace under the
    paper's last A leaves the mask out; with pairs ahead of a row the bound still holds and says nothing.) Raises
    BadInput where a row keeps nothing.
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
    """Measure every query head of a layer at every threshold: records {threshold, head, density, error, bound}."""
    request = all_rows(model, tokens, return_queries=(layer,))
    (output,) = prefill_many(model, [request], logits_to_keep=1)
    queries, keys, values = scaled(model, layer, output), request.kv.keys[layer], request.kv.values[layer]
    rows, group = torch.arange(len(tokens), device=keys.device), len(queries) // len(keys)
    masks = {at: method.with_threshold(at)(queries, keys, rows).visible(len(rows), len(rows)) for at in thresholds}
    records = []
    for head, query in enumerate(queries):
        logits = query.double() @ keys[head // group].double().mT * query.shape[-1] ** -0.5
        for at, kept in masks.items():
            measured = head_bound(logits, values[head // group], kept[head])
            records.append({"threshold": at, "head": head, **vars(measured)})
    return records
