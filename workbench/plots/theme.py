"""One look for every figure: template, colours, and the title / what-to-notice / how-measured frame around a plot."""

from collections.abc import Iterable
from math import ceil, floor, log10
from textwrap import wrap
from typing import Any

import plotly.graph_objects as go

WIDTH = 980  # px; fixed, so that labels fall where they were looked at
INK, MUTED, FAINT, RULE, PAPER = "#1b1e23", "#5a6068", "#eceef1", "#d5d9de", "#ffffff"
FONT = "Inter, 'Open Sans', 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif"

# Okabe and Ito's colours, which people with the common colour-vision deficiencies can tell apart; darkened where
# they must carry text.
BLUE, ORANGE, GREEN, RED, PINK, SKY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9"
BLOCKS = (BLUE, ORANGE, GREEN, PINK, SKY, RED)  # cached blocks take them in turn
QUESTION = INK
SEQUENTIAL = "Cividis"

MODES = {  # how a prompt is answered: the same colour in every figure
    "full": INK, "block": BLUE, "naive": RED, "recompute": ORANGE, "stock full": MUTED, "stock prefix": GREEN,
}  # fmt: skip
MODE_NAMES = {
    "full": "full attention",
    "block": "block attention, re-encoded",
    "naive": "block attention, naive positions",
    "recompute": "blocks, some tokens computed again",
    "stock full": "transformers, full prefill",
    "stock prefix": "transformers, ready prefix cache",
}
MODE_SYMBOLS = {
    "full": "circle", "block": "square", "naive": "diamond", "recompute": "star", "stock full": "triangle-up",
    "stock prefix": "triangle-down",
}  # fmt: skip

_AXIS = {
    "gridcolor": FAINT,
    "linecolor": RULE,
    "zeroline": False,
    "ticks": "outside",
    "tickcolor": RULE,
    "ticklen": 4,
    "showline": True,
    "title": {"standoff": 8, "font": {"size": 12, "color": MUTED}},
    "tickfont": {"size": 11, "color": MUTED},
    "automargin": False,
}
TEMPLATE = go.layout.Template(
    layout={
        "font": {"family": FONT, "size": 12, "color": INK},
        "paper_bgcolor": PAPER,
        "plot_bgcolor": PAPER,
        "colorway": list(BLOCKS),
        "colorscale": {"sequential": SEQUENTIAL},
        "xaxis": _AXIS,
        "yaxis": _AXIS,
        "hoverlabel": {"font": {"family": FONT, "size": 12}, "align": "left"},
        "legend": {"orientation": "h", "x": 0, "xanchor": "left", "y": 1, "yanchor": "bottom", "font": {"size": 12}},
        "annotationdefaults": {"font": {"size": 12, "color": INK}, "showarrow": False},
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": RULE, "activecolor": MUTED},
    }
)


def block_colour(block: int, blocks: int) -> str:
    """Colour of block number `block` of `blocks`; the last one is the question."""
    return QUESTION if block == blocks - 1 else BLOCKS[block % len(BLOCKS)]


def pale(colour: str, strength: float = 0.4) -> str:
    """`colour` (#rrggbb) mixed with white; strength 1 leaves it as it is."""
    parts = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(255 - strength * (255 - part)):02x}" for part in parts)


def clear(colour: str, opacity: float) -> str:
    """`colour` (#rrggbb) that lets what lies under it through."""
    return f"rgba({', '.join(str(int(colour[i : i + 2], 16)) for i in (1, 3, 5))}, {opacity})"


def finish(
    fig: go.Figure,
    *,
    title: str,
    notice: str,
    caption: str,
    height: int,
    above: int = 36,
    below: int = 56,
    left: int = 72,
    right: int = 24,
) -> go.Figure:
    """Put the frame around a plot: title, what to notice (under it), how it was measured (at the foot).

    `height` is that of the plot area in px; `above` and `below` is the room that legends, menus, sliders and axis
    titles need
    between the plot area and the texts.
    """
    noticed, measured = _lines(notice, 136), _lines(caption, 168)
    top = 50 + 18 * len(noticed) + above
    if fig.layout.legend.x is None:
        fig.update_layout(legend_x=(8 - left) / (WIDTH - left - right))  # in line with the title
    bottom = below + 15 * len(measured) + 16
    fig.update_layout(
        template=TEMPLATE,
        width=WIDTH,
        height=height + top + bottom,
        margin={"t": top, "b": bottom, "l": left, "r": right},
    )
    texts = (
        (f"<b>{title}</b>", 1, "bottom", top - 32, 17, INK),
        ("<br>".join(noticed), 1, "bottom", above + 6, 13, MUTED),
        ("<br>".join(measured), 0, "top", -below, 11, MUTED),
    )
    for text, y, anchor, shift, size, colour in texts:
        fig.add_annotation(
            text=text, x=0, xref="paper", xanchor="left", xshift=8 - left, y=y, yref="paper", yanchor=anchor,
            yshift=shift, showarrow=False, align="left", font={"size": size, "color": colour},
        )  # fmt: skip
    return fig


def _lines(text: str, width: int) -> list[str]:
    return [line for part in text.split("<br>") for line in wrap(part, width)]


def with_title(text: str, **more: Any) -> dict[str, Any]:
    """An axis title as a dictionary, with the template's spacing kept."""
    return {"title": {"text": text}, **more}


def log_ticks(values: Iterable[float]) -> dict[str, Any]:
    """Of a logarithmic axis: powers of ten where the values span more than three of them, else 1-2-5 steps."""
    positive = [value for value in values if value > 0] or [1.0]
    low, high = floor(log10(min(positive))), ceil(log10(max(positive)))
    if high - low > 3 or high > 5:
        return {"dtick": 1, "exponentformat": "power"}
    steps = [digit * 10.0**power for power in range(low, high + 1) for digit in (1, 2, 5)]
    return {"tickvals": steps, "ticktext": [f"{step:,.3g}" if step < 1000 else f"{step:,.0f}" for step in steps]}


def panel_titles(fig: go.Figure, size: int = 13) -> None:
    """Left-align the titles that `make_subplots` centred over the panels; call before `finish`."""
    for note, axis in zip(fig.layout.annotations, fig.select_xaxes(), strict=False):
        note.update(x=axis.domain[0], xanchor="left", font={"size": size, "color": INK})


def legend_over(height: int, gap: int = 4, **more: Any) -> dict[str, Any]:
    """A legend line `gap` px over a plot area of `height` px."""
    return {"y": 1 + gap / height, "yanchor": "bottom", **more}
