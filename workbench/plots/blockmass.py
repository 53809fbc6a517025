"""How much blocks look at each other, under several ways to answer, with layer and head selectors."""

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from workbench.plots.controls import head_menu, layer_slider, of_head
from workbench.plots.theme import MODE_NAMES, SEQUENTIAL, finish, panel_titles


def block_mass(mass: dict[str, np.ndarray], *, caption: str, notice: str, layer: int = -1) -> go.Figure:
    """`mass` mode → float32 [L, H, B, B]: mean share of attention that rows of one block pay to another block;
    what is exactly 0 (hidden, or the future) stays blank."""
    modes = list(mass)
    layers, heads, count = next(iter(mass.values())).shape[:3]
    layer %= layers
    ticks = ["Q" if b == count - 1 else str(b) for b in range(count)]
    fig = make_subplots(1, len(modes), horizontal_spacing=0.05, subplot_titles=[MODE_NAMES.get(m, m) for m in modes])
    for head in range(heads + 1):
        for col, mode in enumerate(modes):
            fig.add_heatmap(
                z=_shown(mass[mode], layer, head),
                x=ticks,
                y=ticks,
                zmin=0,
                zmax=1,
                coloraxis="coloraxis",
                visible=head == 0,
                xgap=1,
                ygap=1,
                row=1,
                col=col + 1,
                hovertemplate="rows of block %{y} pay block %{x}<br>%{z:.1%} of their attention<extra></extra>",
            )
    fig.frames = [
        go.Frame(
            name=str(at), traces=list(range(len(fig.data))),
            data=[go.Heatmap(z=_shown(mass[mode], at, head)) for head in range(heads + 1) for mode in modes],
        )
        for at in range(layers)
    ]  # fmt: skip
    fig.update_xaxes(type="category", showgrid=False, ticks="", title_text="block looked at", constrain="domain")
    fig.update_yaxes(type="category", showgrid=False, ticks="", autorange="reversed", constrain="domain")
    fig.update_yaxes(title_text="block that looks", row=1, col=1)
    scale = {"title": {"text": "share", "side": "top"}, "tickformat": ".0%", "thickness": 12, "outlinewidth": 0}
    fig.update_layout(
        coloraxis={
            "cmin": 0,
            "cmax": 1,
            "colorscale": SEQUENTIAL,
            "colorbar": {**scale, "x": 1.01, "len": 1, "y": 0.5},
        },
        sliders=[layer_slider(layers, layer)],
        updatemenus=[head_menu(heads, len(modes), 270)],
    )
    panel_titles(fig)
    return finish(
        fig,
        title="How much blocks look at each other",
        notice=notice,
        caption=caption,
        height=270,
        above=62,
        below=128,
        right=84,
    )


def _shown(mass: np.ndarray, layer: int, head: int) -> np.ndarray:
    picked = of_head(mass, layer, head)
    return np.where(picked > 0, picked, np.nan).astype(np.float32)
