"""BFLA's bound on the error of a head's output beside the error itself."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from workbench.plots.marks.lines import profile, profiles
from workbench.plots.marks.theme import BLUE, RED

NAMES = {"bound": "the bound of equation 30", "error": "the error itself"}


def error_bound(records: Sequence[dict[str, Any]], *, layer: int, about: str) -> go.Figure:
    """Draw mean and range over heads of error and bound against density, from `error_bounds`."""
    by_threshold = pd.DataFrame(records).groupby("threshold")
    at = by_threshold.density.mean()
    lines = []
    for field, name in NAMES.items():
        values = pd.DataFrame({"at": at, "mean": by_threshold[field].mean()})
        values = values.assign(low=by_threshold[field].min(), high=by_threshold[field].max()).sort_values("at")
        lines += [{"name": name, **row} for row in values[values["mean"] > 0].to_dict("records")]
    panel = profile("", lines, "share of the causal pairs kept", "over the norm of the output", True, percent_x=True)
    return profiles(
        [panel],
        colours={NAMES["bound"]: RED, NAMES["error"]: BLUE},
        title="How tight BFLA's bound is",
        notice=said(records),
        caption=f"Frobenius norms; lines are means over the heads of layer {layer}, bands their range. {about}.",
    )


def said(records: Sequence[dict[str, Any]]) -> str:
    """Say whether the bound holds everywhere, and how far it lies above the error where most is left out."""
    frame = pd.DataFrame(records)
    broken = int((frame.error > frame.bound).sum())
    holds = "The bound holds in every case" if not broken else f"The bound is broken in {broken} of {len(frame)} cases"
    dropped = frame[frame.error > 0]
    if not len(dropped):
        return f"{holds}; no head's output changes at these thresholds."
    sparse = dropped[dropped.threshold == dropped.groupby("threshold").density.mean().idxmin()]
    error, bound = sparse.error.mean(), sparse.bound.mean()
    size = f"With {sparse.density.mean():.0%} of the pairs kept the error is {error:.2g} of the output's norm"
    worth = "less" if bound < 1 else "more"
    times = f"the bound {_short(bound)}, {_short(bound / error)} times as much"
    return f"{holds}. {size} and {times}; it allows for {worth} than the whole output."


def _short(value: float) -> str:
    if value < 1e4:
        return f"{value:,.3g}"
    digit, power = f"{value:.0e}".split("e+")
    return f"{digit}\u00a0·\u00a010<sup>{int(power)}</sup>"
