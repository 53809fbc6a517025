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
        caption=f"Frobenius norms; lines are means over the heads of layer {layer}, bands their range. {about}.",
    )
