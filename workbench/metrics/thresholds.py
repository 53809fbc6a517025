"""Which threshold? The sparsest setting of a method that keeps what is asked for."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import torch
from transformers import PreTrainedModel

from workbench.core.blocks import Prompt
from workbench.core.errors import BadInput
from workbench.methods.sparse import Sparse
from workbench.metrics.answers import wilson
from workbench.metrics.tile_recall import States, chosen, dense_states

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
    """Find the sparsest threshold of every method that keeps the share `keep` of the attention mass of the prompts,
    mean over layers, heads and prompts: {method, option, value, density, mass, steps}.

    Found by bisection, on the states of dense attention; `steps` values were tried. `value` is None where even the last
    keeps less. Single columns count as the tiles that they are in. BadInput for a chunk of no whole tiles.
    """
    if not 0 < keep <= 1:
        raise BadInput(f"keep is {keep}: it is a share, above 0 to 1")
    states, found = [dense_states(model, prompt.tokens) for prompt in prompts], []
    for name, method in methods.items():
        option, values = method.threshold_steps
        low, high, known = 0, len(values) - 1, {}
        while low < high:
            middle = (low + high) // 2
            known[middle] = _kept(states, method.with_threshold(values[middle]), chunk)
            low, high = (low, middle) if known[middle][1] >= keep else (middle + 1, high)
        known[low] = known.get(low) or _kept(states, method.with_threshold(values[low]), chunk)
        density, mass = known[low]
        value = values[low] if mass >= keep else None
        row = {"method": name, "option": option, "value": value, "density": density, "mass": mass}
        found.append(row | {"steps": len(known)})
    return sorted(found, key=lambda r: (r["value"] is None, r["density"]))


def _kept(states: Sequence[States], method: Sparse, chunk: int | None) -> tuple[float, float]:
    """Density and attention mass, mean over prompts, layers and heads."""
    every = [chosen(state, layer, method, chunk=chunk) for state in states for layer in state.layers]
    density, mass = (torch.stack(parts).mean() for parts in zip(*((c.density(), c.held()) for c in every), strict=True))
    return float(density), float(mass)
