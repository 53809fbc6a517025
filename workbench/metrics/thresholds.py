"""Which threshold? The sparsest setting of a method that keeps what is asked for."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import torch
from transformers import PreTrainedModel

from workbench.blocks import Prompt
from workbench.engine import empty, prefill
from workbench.errors import BadInput
from workbench.metrics.answers import wilson
from workbench.metrics.sparsity import of_layer, scaled
from workbench.plan import Plan
from workbench.probing import facts_of
from workbench.sparse import Sparse

KEPT = ("em", "f1", "mass", "recall", "agree", "first")  # measures that are higher where more is kept


def cheapest(
    table: pd.DataFrame, measure: str, keep: float, answers: pd.DataFrame | None = None, cost: str = "density"
) -> list[dict[str, Any]]:
    """Of every method of `table` (a row a setting) the setting of least `cost` that keeps the share `keep` of what
    dense attention reaches in `measure`; methods whose settings all keep less are left with `spec` None.

    {method, spec, value, density, union, reached, low, high, sure}: `sure` where the 95% interval keeps it as well.
    With `answers`, exact match is compared question by question: of those that dense attention answers right, the share
    that the method does has to keep it, by Wilson's interval.
    """
    if measure not in KEPT:
        raise BadInput(f"unknown measure {measure!r}: allowed are {', '.join(KEPT)}")
    dense, found = table[table.method == "dense"].iloc[0], []
    for method, part in table[table.method != "dense"].groupby("method", sort=False):
        enough = part[part[measure] >= keep * dense[measure] - 1e-9].sort_values(cost)
        best = enough.iloc[0] if len(enough) else part.sort_values(measure).iloc[-1]
        low, high = best[f"{measure}_low"], best[f"{measure}_high"]
        sure = low >= keep * dense[measure] - 1e-9
        if answers is not None and measure == "em":
            both = answers[f"em {best.spec}"][answers[f"em {dense.spec}"] == 1]
            sure = wilson(both.sum(), len(both))[0] >= keep
        found.append(
            {"method": method, "spec": best.spec if len(enough) else None, "value": best.value,
             "density": best.density, "union": best.union, "reached": best[measure], "low": low, "high": high,
             "sure": bool(sure and len(enough))}
        )  # fmt: skip
    return sorted(found, key=lambda r: (r["spec"] is None, r.get(cost, 0)))


def search(
    model: PreTrainedModel,
    prompts: Sequence[Prompt],
    methods: Mapping[str, Sparse],
    keep: float,
    chunk: int | None = None,
) -> list[dict[str, Any]]:
    """The sparsest step of every method's dial that keeps the share `keep` of the attention mass of prompts of one's
    own, mean over layers, heads and prompts: {method, option, value, density, mass, steps}; found by halving the dial,
    on the states of dense attention. `value` is None where even the last step keeps less."""
    if not 0 < keep <= 1:
        raise BadInput(f"keep is {keep}: it is a share, above 0 to 1")
    states = [_states(model, prompt) for prompt in prompts]

    def measured(method: Sparse) -> tuple[float, float]:
        counts = [of_layer(q, kv, layer, method, chunk) for kv, layers in states for layer, q in layers.items()]
        kept, mass = ([float(x) for count in counts for x in getattr(count, of[0]) / getattr(count, of[1])]
                      for of in (("kept", "pairs"), ("mass", "rows")))  # fmt: skip
        return sum(kept) / len(kept), sum(mass) / len(mass)

    found = []
    for name, method in methods.items():
        option, values = method.dial
        low, high, known = 0, len(values) - 1, {}
        while low < high:
            middle = (low + high) // 2
            known[middle] = measured(method.turned(values[middle]))
            low, high = (low, middle) if known[middle][1] >= keep else (middle + 1, high)
        density, mass = known.get(low) or measured(method.turned(values[low]))
        found.append(
            {"method": name, "option": option, "value": values[low] if mass >= keep else None, "density": density,
             "mass": mass, "steps": len({*known, low})}
        )  # fmt: skip
    return sorted(found, key=lambda r: (r["value"] is None, r["density"]))


def _states(model: PreTrainedModel, prompt: Prompt) -> tuple[Any, dict[int, torch.Tensor]]:
    """KV and, for every layer without a narrower window, queries under dense attention."""
    windows = facts_of(model).windows
    layers = tuple(i for i, size in enumerate(windows) if not size or size >= len(prompt))
    kv, rows = empty(model, len(prompt)), torch.arange(len(prompt))
    step = prefill(model, prompt.tokens, Plan(rows, watch=layers), kv, logits_to_keep=1)
    return kv, {layer: scaled(model, layer, step) for layer in layers}
