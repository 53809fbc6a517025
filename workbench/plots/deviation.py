"""How far the cached keys and values of every token are from those of full attention, layer by layer."""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from workbench.plots.masks import names
from workbench.plots.theme import INK, MUTED, PAPER, SEQUENTIAL, finish, panel_titles

FLOOR = 1e-4  # squared deviation that counts as none: rounding


def deviation(
    gaps: Mapping[str, np.ndarray], tokens: Sequence[str], block_of: np.ndarray, *, caption: str, notice: str,
    marked: Collection[int] = (),
) -> go.Figure:  # fmt: skip
    """`gaps` name → [T, L] squared deviation, one panel each over one logarithmic colour scale; what deviates by less
    than rounding is left white. `tokens` and `block_of` are of the T tokens; `marked` blocks get a star."""
    shown = {name: np.where(gap > FLOOR, np.log10(np.maximum(gap, FLOOR)), np.nan).T for name, gap in gaps.items()}
    every = np.concatenate([z[~np.isnan(z)] for z in shown.values()])
    low, high = (float(np.quantile(every, 0.02)), float(every.max())) if len(every) else (-1.0, 0.0)
    fig = make_subplots(len(shown), 1, shared_xaxes=True, vertical_spacing=0.12, subplot_titles=list(shown))
    labels = names([*tokens, ""], np.append(block_of, block_of.max() + 1))[:-1]  # no block of these is the question
    layers = next(iter(shown.values())).shape[0]
    ticks = np.arange(np.ceil(low), np.floor(high) + 1)
    for row, (name, z) in enumerate(shown.items(), 1):
        fig.add_heatmap(
            z=z.astype(np.float32), x=np.arange(z.shape[1]), y=list(range(layers)), coloraxis="coloraxis",
            customdata=np.broadcast_to(np.array(labels, dtype=object), z.shape), xgap=0, ygap=1,
            hovertemplate="%{customdata}<br>layer %{y}: squared deviation 10^%{z:.2f}<extra>" + name + "</extra>",
            row=row, col=1,
        )  # fmt: skip
        for edge in np.flatnonzero(np.diff(block_of)) + 0.5:
            fig.add_vline(edge, line={"color": INK, "width": 0.8}, row=row, col=1)
    edges = np.concatenate(([-0.5], np.flatnonzero(np.diff(block_of)) + 0.5, [len(block_of) - 0.5]))
    middles = (edges[:-1] + edges[1:]) / 2
    fig.update_xaxes(
        tickvals=middles, ticktext=[f"{i}{'★' if i in marked else ''}" for i in range(len(middles))], ticks="",
        showgrid=False,
    )  # fmt: skip
    fig.update_xaxes(title_text="token (by block)", row=len(shown), col=1)
    fig.update_yaxes(title_text="layer", showgrid=False, dtick=max(1, layers // 8))
    fig.update_layout(
        coloraxis={
            "colorscale": SEQUENTIAL, "cmin": low, "cmax": high,
            "colorbar": {
                "title": {"text": "squared<br>deviation", "font": {"size": 11, "color": MUTED}}, "thickness": 12,
                "tickvals": ticks, "ticktext": [f"10<sup>{int(t)}</sup>" for t in ticks], "outlinewidth": 0,
            },
        },
        plot_bgcolor=PAPER,
    )  # fmt: skip
    panel_titles(fig)
    height = 170 * len(shown)
    return finish(
        fig, title="How far cached keys and values are from full attention", notice=notice, caption=caption,
        height=height, above=34, below=56, right=90,
    )  # fmt: skip
