"""Scores of many methods beside one another: one row a method, one panel a kind of question, with 95% intervals."""

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from workbench.plots.theme import BLUE, FAINT, INK, finish, panel_titles

ROW = 26  # px


def forest(
    records: Sequence[dict],
    *,
    title: str,
    caption: str,
    notice: str,
    score: str = "em",
    unit: str = "exact match",
    colours: Mapping[str, str] | None = None,
    marks: Mapping[str, str] | None = None,
    reference: str = "",
) -> go.Figure:
    """`records`: {name, kind, n, <score>, <score>_low, <score>_high}, in the order in which names shall stand.

    A dotted line marks the score of the method named `reference` in every panel. `colours` and `marks` (plotly symbols)
    are by name.
    """
    names = list(dict.fromkeys(r["name"] for r in records))
    kinds = list(dict.fromkeys(r["kind"] for r in records))
    counts = {r["kind"]: r["n"] for r in records}
    heads = [f"{kind}<br>n = {counts[kind]:,}" for kind in kinds]
    fig = make_subplots(1, len(kinds), shared_yaxes=True, horizontal_spacing=0.012, subplot_titles=heads)
    for col, kind in enumerate(kinds, 1):
        rows = [r for r in records if r["kind"] == kind]
        fig.add_scatter(
            x=[r[score] for r in rows],
            y=[r["name"] for r in rows],
            error_x={
                "array": [r[f"{score}_high"] - r[score] for r in rows],
                "arrayminus": [r[score] - r[f"{score}_low"] for r in rows],
                "thickness": 1.6,
                "width": 3,
                "color": INK,
            },
            mode="markers",
            marker={
                "size": 9,
                "color": [(colours or {}).get(r["name"], BLUE) for r in rows],
                "symbol": [(marks or {}).get(r["name"], "circle") for r in rows],
            },
            customdata=[[r["n"], r[f"{score}_low"], r[f"{score}_high"]] for r in rows],
            hovertemplate="<b>%{y}</b><br>" + unit + " %{x:.1%}<br>95% interval %{customdata[1]:.1%} to "
            "%{customdata[2]:.1%}, n = %{customdata[0]:,}<extra>" + kind + "</extra>",
            showlegend=False,
            row=1,
            col=col,
        )
        if level := [r[score] for r in rows if r["name"] == reference]:
            fig.add_vline(level[0], line={"color": INK, "width": 1, "dash": "dot"}, row=1, col=col)
    fig.update_xaxes(range=[-0.06, 1.06], tickvals=[0, 0.5, 1], ticktext=["0", "50%", "100"], gridcolor=FAINT)
    fig.update_yaxes(categoryorder="array", categoryarray=names[::-1], showgrid=True, ticks="")
    panel_titles(fig)
    return finish(
        fig,
        title=title,
        notice=notice,
        caption=caption,
        height=ROW * len(names) + 12,
        above=56,
        below=46,
        left=40 + 7 * max(map(len, names)),
    )
