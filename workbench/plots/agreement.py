"""How far methods choose the same tokens: a matrix with its numbers."""

from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go

from workbench.plots.theme import BLUE, MUTED, PAPER, RULE, clear, finish

CELL = 46  # px


def agreement(
    matrices: Mapping[str, np.ndarray], names: Sequence[str], *, title: str, caption: str, notice: str
) -> go.Figure:
    """`matrices` measure → [M, M] shares from 0 to 1 of the methods `names`; a menu picks the measure."""
    fig, columns = go.Figure(), [name.replace(" (", "<br>(").replace(": ", "<br>") for name in names]
    for i, matrix in enumerate(matrices.values()):
        fig.add_heatmap(
            z=np.where(np.eye(len(names), dtype=bool), np.nan, matrix).astype(np.float32), x=columns,
            y=list(names), zmin=0, zmax=1, colorscale=[[0, PAPER], [1, clear(BLUE, 0.75)]], showscale=False,
            xgap=2, ygap=2, visible=i == 0, texttemplate="%{z:.0%}", hoverongaps=False,
            hovertemplate="%{y}<br>%{x}<br>%{z:.1%} in common<extra></extra>",
        )  # fmt: skip
    buttons = [
        {"label": label, "method": "restyle", "args": ["visible", [other == label for other in matrices]]}
        for label in matrices
    ]
    height = CELL * len(names)
    menu = {
        "type": "buttons", "direction": "right", "buttons": buttons, "x": 1, "xanchor": "right",
        "y": 1 + 8 / height, "yanchor": "bottom", "bgcolor": PAPER, "bordercolor": RULE,
        "font": {"color": MUTED}, "pad": {"t": 0, "b": 0},
    }  # fmt: skip
    fig.update_layout(updatemenus=[menu])
    fig.update_xaxes(showgrid=False, ticks="", showline=False, tickangle=0)
    fig.update_yaxes(autorange="reversed", showgrid=False, ticks="", showline=False)
    return finish(
        fig, title=title, notice=notice, caption=caption, height=height, above=46, below=56,
        left=24 + 7 * max(map(len, names)), right=24,
    )  # fmt: skip
