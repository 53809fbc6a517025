"""A threshold under a slider: the tiles that it keeps, and where it stands on the curve of attention over density."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from workbench.plots.controls import frame_slider
from workbench.plots.theme import INK, finish, legend_over, panel_titles
from workbench.plots.tiles import RAMPS, Cells, Span, axes, heatmap, legend

SIDE = 400


@dataclass(frozen=True)
class Turn:
    """One value of the threshold: its picture, a sentence, and the density and attention kept of all heads together."""

    picture: Cells
    said: str
    density: float
    mass: float


@dataclass(frozen=True)
class Curve:
    """A method from few tiles to many."""

    name: str
    colour: str
    symbol: str
    density: Sequence[float]
    mass: Sequence[float]
    values: Sequence[str]  # of its option, for the hover


def turning(
    turns: Sequence[Turn], span: Span, curves: Sequence[Curve], names: Mapping[str, str], *, active: int,
    caption: str, notice: str,
) -> go.Figure:  # fmt: skip
    """`names` of the two panels: "map" and "curves". The slider begins at turn number `active`."""
    wide = SIDE / 860
    fig = make_subplots(1, 2, subplot_titles=[names["map"], names["curves"]], column_widths=[wide, 0.9 - wide],
                        horizontal_spacing=0.1)  # fmt: skip
    now = turns[active]
    fig.add_trace(heatmap(now.picture, span), row=1, col=1)
    point = {"color": INK, "symbol": "circle-open", "size": 17, "line": {"width": 2.5}}
    fig.add_scatter(
        x=[now.density], y=[now.mass], mode="markers", marker=point, showlegend=False, hoverinfo="skip", row=1, col=2,
        cliponaxis=False,
    )  # fmt: skip
    for curve in curves:
        fig.add_scatter(
            x=list(curve.density), y=list(curve.mass), name=curve.name, mode="lines+markers", legend="legend2",
            line={"color": curve.colour, "width": 2}, marker={"color": curve.colour, "symbol": curve.symbol, "size": 7},
            customdata=list(curve.values), row=1, col=2,
            hovertemplate="%{customdata}: %{y:.1%} of the attention in %{x:.1%} of the pairs<extra>"
            + curve.name + "</extra>",
        )  # fmt: skip
    legend(fig)
    fig.frames = [
        go.Frame(
            name=str(at), traces=[0, 1],
            data=[
                go.Heatmap(z=turn.picture.z, customdata=turn.picture.percent),
                go.Scatter(x=[turn.density], y=[turn.mass]),
            ],
        )
        for at, turn in enumerate(turns)
    ]  # fmt: skip
    axes(fig, span, row=1, col=1)
    fig.update_xaxes(title_text="key (token)", row=1, col=1)
    fig.update_yaxes(title_text="row (token)", row=1, col=1)
    fig.update_xaxes(title_text="density: share of the causal pairs kept", tickformat=".0%", range=[0, 1.01], col=2)
    fig.update_yaxes(title_text="attention kept", tickformat=".0%", range=[0, 1.01], row=1, col=2)
    panel_titles(fig)
    inside = {"x": 0.995, "xanchor": "right", "y": 0.03, "yanchor": "bottom", "orientation": "v"}
    fig.update_layout(
        sliders=[frame_slider([turn.said for turn in turns], active, spoken=True, pad=52)],
        legend=legend_over(SIDE, 26, itemclick=False),
        legend2=inside,
    )
    assert len(fig.data) == 2 + len(curves) + len(RAMPS)
    return finish(
        fig, title="From few tiles to many", notice=notice, caption=caption, height=SIDE, above=62, below=132, left=76
    )
