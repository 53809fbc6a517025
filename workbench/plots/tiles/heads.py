"""One number per layer and head, methods side by side."""

from collections.abc import Mapping, Sequence
from typing import Unpack

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from workbench.metrics.tiles.key_rankings import Rankings
from workbench.plots.marks.theme import (
    BLUE,
    FAINT,
    GREEN,
    MUTED,
    RED,
    RULE,
    SEQUENTIAL,
    SMALLEST,
    WIDTH,
    Texts,
    finish,
    panel_titles,
)

CELL, MOST = 21, 150  # px of a cell's height and width; maximum cells of a panel with numbers


def of_rows(rows: pd.DataFrame, measures: Mapping[str, str], **texts: Unpack[Texts]) -> go.Figure | None:
    """Draw counts of kind "layer 3 head 2", one column per value of `series`; None without rows.

    `measures`: name → title. Only the first source with such rows is drawn.
    """
    places = rows.kind.str.extract(r"^layer (?P<layer>\d+) head (?P<head>\d+)$").dropna().astype(int)
    cells = rows.join(places, how="inner")
    cells = cells[cells.measure.isin(measures) & (cells.source == cells.source.iloc[0])] if len(cells) else cells
    grids: dict[str, dict[str, np.ndarray]] = {}
    for (measure, series), part in cells.groupby(["measure", "series"], sort=False):
        grid = part.pivot(index="layer", columns="head", values="value")
        grids.setdefault(measures[str(measure)], {})[str(series)] = grid.to_numpy(np.float32)
    return by_head(grids, layers=sorted(cells.layer.unique()), **texts) if grids else None


def by_head(
    measures: Mapping[str, Mapping[str, np.ndarray]], layers: Sequence[int], **texts: Unpack[Texts]
) -> go.Figure:
    """Draw one row of panels per measure, one column per method: `measures` name → method → shares [L, Hq]."""
    methods = list(next(iter(measures.values())))
    titles = [f"{method}: {table[method].mean():.0%}" for table in measures.values() for method in methods]
    spacing = {"shared_xaxes": True, "shared_yaxes": True, "horizontal_spacing": 0.012, "vertical_spacing": 0.1}
    size = (len(measures), len(methods))
    fig = make_subplots(*size, row_titles=list(measures), subplot_titles=titles, **spacing)
    for row, (measure, table) in enumerate(measures.items(), 1):
        for col, method in enumerate(methods, 1):
            z = table[method].astype(np.float32)
            heat = go.Heatmap(z=z, y=[str(layer) for layer in layers], coloraxis="coloraxis", xgap=1, ygap=1)
            hover = f"layer %{{y}}, head %{{x}}: %{{z:.1%}} {measure}<extra>{method}</extra>"
            if z.size <= MOST and CELL * z.shape[1] * len(methods) <= WIDTH - 176:
                heat.update(text=(100 * z).round().astype(int), texttemplate="%{text}", textfont={"size": SMALLEST})
            fig.add_trace(heat.update(hovertemplate=hover), row=row, col=col)
    fig.update_yaxes(autorange="reversed", type="category", showgrid=False, ticks="", showline=False)
    fig.update_xaxes(showgrid=False, ticks="", showline=False, nticks=9)
    fig.update_xaxes(title_text="head", row=len(measures))
    fig.update_yaxes(title_text="layer", col=1)
    font = {"size": 12, "color": MUTED}
    bar = {"tickformat": ".0%", "thickness": 12, "outlinewidth": 0, "x": 1.035, "tickfont": font}
    fig.update_layout(coloraxis={"colorscale": SEQUENTIAL, "cmin": 0, "cmax": 1, "colorbar": bar})
    lines_of = [note for note in fig.layout.annotations if note.text in measures]
    panel_titles(fig, 11 if len(methods) > 4 else 12)
    for note in lines_of:
        note.update(xanchor="left", font={"size": 12, "color": MUTED})
    height = len(measures) * (CELL * max(4, len(layers)) + 30)
    return finish(fig, height=height, above=34, below=52, right=104, **texts)


LEAST = 1e-7  # minimum of an axis


def key_rankings(ranked: Sequence[Rankings], *, budget: float, window: int, about: str) -> go.Figure:
    """Draw the keys of the head whose mean ranking misses most; `budget`: share of keys that a ranking may select."""
    worst = max(ranked, key=lambda one: one.missed_share(budget))
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
    for axis, title in (("x", "mean over queries"), ("y", "maximum over queries")):
        fig.update_layout({f"{axis}axis": {"type": "log", "title_text": title, "exponentformat": "power", "dtick": 1}})
    return finish(
        fig,
        title=f"Keys kept by mean and by maximum: layer {worst.layer}, head {worst.head}",
        caption=f"The last {window} queries over the {len(worst.mean):,} keys before them; the largest {budget:.0%} of "
        f"the keys by each ranking. The head shown is the one where the mean misses most. {about}.",
        height=360,
        legend=6,
    )
