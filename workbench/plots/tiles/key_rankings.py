"""Keys by the mean and by the maximum of their attention: which of them a ranking by the mean misses."""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from workbench.metrics.tiles.key_rankings import Rankings
from workbench.plots.marks.theme import BLUE, FAINT, GREEN, RED, RULE, finish

LEAST = 1e-7  # of an axis


def key_rankings(ranked: Sequence[Rankings], *, budget: float, window: int, about: str) -> go.Figure:
    """Draw the keys of the head in which the mean misses most; `budget`: share of the keys that a ranking may take."""
    worst = max(ranked, key=lambda one: one.missed(budget))
    by_mean, by_peak = (mask.numpy() for mask in worst.largest(budget))
    groups = {
        "neither": (~by_mean & ~by_peak, FAINT),
        "by both": (by_mean & by_peak, BLUE),
        "by the mean only": (by_mean & ~by_peak, GREEN),
        "by the maximum only: missed": (by_peak & ~by_mean, RED),
    }
    fig = go.Figure()
    for name, (mask, colour) in groups.items():
        at = np.flatnonzero(mask)
        mean, peak = (np.maximum(values.cpu().numpy()[at], LEAST) for values in (worst.mean, worst.peak))
        hover = "key %{customdata}: mean %{x:.2g}, maximum %{y:.2g}<extra></extra>"
        edge = {"width": 0.5, "color": RULE if name == "neither" else colour}
        marker = {"color": colour, "size": 6, "line": edge}
        fig.add_scatter(x=mean, y=peak, mode="markers", name=name, marker=marker, customdata=at, hovertemplate=hover)
    for axis, title in (("x", "mean attention of the rows"), ("y", "largest of any row")):
        fig.update_layout({f"{axis}axis": {"type": "log", "title_text": title, "exponentformat": "power", "dtick": 1}})
    return finish(
        fig,
        title=f"Keys that a ranking keeps: layer {worst.layer}, head {worst.head}",
        caption=f"The last {window} rows over the {len(worst.mean):,} keys before them; the largest {budget:.0%} of "
        f"the keys by each ranking. The head shown is the one where the mean misses most. {about}.",
        height=360,
        legend=6,
    )
