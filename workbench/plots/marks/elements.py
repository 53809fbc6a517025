"""Elements that figures share: intervals, bands, legend entries, colour scales, axes of blocks."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from workbench.plots.marks.theme import clear


def interval(
    middle: Sequence[float], low: Sequence[float], high: Sequence[float], thickness: float = 1.6, width: float = 3
) -> dict[str, Any]:
    """Return plotly's error bars from `low` to `high` around `middle`, all [N]."""
    above = [end - at for at, end in zip(middle, high, strict=True)]
    below = [at - end for at, end in zip(middle, low, strict=True)]
    return {"array": above, "arrayminus": below, "thickness": thickness, "width": width}


def band(x: Sequence[float], low: Sequence[float], high: Sequence[float], colour: str, **more: Any) -> go.Scatter:
    """Return an area between `low` and `high` over `x`, all [N]."""
    around = {"x": [*x, *reversed(x)], "y": [*high, *reversed(low)], "fill": "toself", "fillcolor": clear(colour, 0.14)}
    return go.Scatter(**around, line={"width": 0}, mode="lines", hoverinfo="skip", showlegend=False, **more)


def swatches(fig: go.Figure, colours: Mapping[str, str]) -> None:
    """Add a square to the legend for every name; they are the last traces of a figure."""
    for name, colour in colours.items():
        square = {"color": colour, "symbol": "square", "size": 11}
        fig.add_scatter(x=[None], y=[None], mode="markers", marker=square, name=name, hoverinfo="skip")


def steps(colours: Sequence[str]) -> list[list[Any]]:
    """Return a colour scale in which every colour fills an equal step."""
    return [[edge / len(colours), colour] for i, colour in enumerate(colours) for edge in (i, i + 1)]


def block_edges(block_of: np.ndarray) -> np.ndarray:
    """Return where one block ends and the next begins, from the block of every token [T]."""
    return np.flatnonzero(np.diff(block_of)) + 0.5


def block_axis(
    block_of: np.ndarray, marked: Collection[int] = (), question: bool = True, **more: Any
) -> dict[str, Any]:
    """Return an axis of tokens that is labelled by block: the last one is Q (`question`), `marked` ones get a star."""
    ends = [-0.5, len(block_of) - 0.5]
    bounds = np.concatenate((ends[:1], block_edges(block_of), ends[1:]))
    middles = (bounds[:-1] + bounds[1:]) / 2
    texts = [f"{block}★" if block in marked else str(block) for block in range(len(middles))]
    if question:
        texts[-1] = "Q"
    return {"tickvals": middles, "ticktext": texts, "range": ends, "showgrid": False, "ticks": "", **more}
