"""Shared elements of figures: intervals, bands, legend entries, and controls that need no kernel."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Unpack

import numpy as np
import plotly.graph_objects as go
from plotly.basedatatypes import BaseTraceType

from workbench.plots.marks.theme import INK, MUTED, PAPER, RULE, TRACK, Texts, clear, finish, legend_over, panel_titles


def layer_slider(layers: int | Sequence[int], active: int) -> dict[str, Any]:
    """Return a slider whose steps are frames named by layer; `active` is the initial step."""
    return frame_slider([str(at) for at in (range(layers) if isinstance(layers, int) else layers)], active, "layer ")


def frame_slider(
    labels: Sequence[str], active: int, prefix: str = "", *, spoken: bool = False, pad: int = 42, **more: Any
) -> dict[str, Any]:
    """Return a slider whose steps are frames.

    Frames are named by label, or by index if labels are sentences (`spoken`: only the current one is shown).
    """
    play = {"mode": "immediate", "frame": {"duration": 0, "redraw": True}, "transition": {"duration": 0}}
    steps = [
        {"label": label, "method": "animate", "args": [[str(at) if spoken else label], play]}
        for at, label in enumerate(labels)
    ]
    return {
        "active": active,
        "steps": steps,
        "currentvalue": {"prefix": prefix, "font": {"size": 12, "color": INK}},
        "font": {"size": 1, "color": PAPER} if spoken else {"size": 12, "color": MUTED},
        **{"x": 0, "len": 1, "y": 0, "yanchor": "top", "pad": {"t": pad, "b": 0}},
        **{"bordercolor": MUTED, "bgcolor": TRACK, "tickcolor": TRACK, **more},
    }


def frames(pictures: Mapping[str, Sequence[BaseTraceType]], traces: Sequence[int] | None = None) -> list[go.Frame]:
    """Return frames by name; each replaces `traces`, or the figure's first traces."""
    return [
        go.Frame(name=name, data=list(data), traces=list(range(len(data)) if traces is None else traces))
        for name, data in pictures.items()
    ]


def finish_with_slider(
    fig: go.Figure,
    height: int,
    pictures: Mapping[str, Sequence[BaseTraceType]] | None = None,
    slider: dict[str, Any] | None = None,
    menu: dict[str, Any] | None = None,
    below: int = 128,
    **texts: Unpack[Texts],
) -> go.Figure:
    """Finish panels of tiles with a slider over `pictures` (frame → traces); a menu of one entry is omitted."""
    if pictures and slider:
        fig.frames = frames(pictures)
        fig.update_layout(sliders=[slider])
    if menu and len(menu["buttons"]) > 1:
        fig.update_layout(updatemenus=[menu])
    panel_titles(fig)
    fig.update_layout(legend=legend_over(height, 26, itemclick=False))
    return finish(fig, height=height, above=62, below=below if slider else 56, left=76, **texts)


def head_menu(
    heads: int, traces: int, height: int, layouts: Sequence[dict[str, Any]] = (), active: int = 0
) -> dict[str, Any]:
    """Return a menu that shows the traces of one head; traces are ordered by head, the mean over heads first.

    `layouts`: other layout changes, per entry.
    """
    return choice_menu(["mean over heads", *(f"head {h}" for h in range(heads))], traces, height, layouts, active)


def choice_menu(
    labels: Sequence[str],
    traces: int,
    height: int,
    layouts: Sequence[dict[str, Any]] = (),
    active: int = 0,
    always: int = 0,
) -> dict[str, Any]:
    """Return a menu that shows the traces of one entry. Traces are ordered by entry; the last `always` stay visible."""
    buttons = [
        button(label, [at // traces == number for at in range(len(labels) * traces)] + [True] * always, layout)
        for number, (label, layout) in enumerate(zip_longest(labels, layouts))
    ]
    return menu(buttons, height, 24, active=active)


def button(label: str, visible: Sequence[bool], layout: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return a menu button that shows some traces and changes the layout."""
    return {"label": label, "method": "update", "args": [{"visible": list(visible)}, layout or {}]}


def menu(buttons: Sequence[dict[str, Any]], height: int, gap: int, **more: Any) -> dict[str, Any]:
    """Return a menu `gap` px above the right end of a plot area of `height` px."""
    place = {"x": 1, "xanchor": "right", "y": 1 + gap / height, "yanchor": "bottom", "pad": {"t": 0, "b": 0}}
    look = {"bgcolor": PAPER, "bordercolor": RULE, "font": {"size": 12}}
    return {"buttons": list(buttons), **place, **look, **more}


def switch(buttons: Sequence[dict[str, Any]], height: int, gap: int) -> dict[str, Any]:
    """Return a menu as a row of buttons."""
    return menu(buttons, height, gap, type="buttons", direction="right", font={"color": MUTED})


def pick_evenly(items: Sequence[int], wanted: int, most: int = 8) -> list[int]:
    """Pick at most `most` evenly spread `items` that include `wanted`: the figure stores a picture of each."""
    if len(items) <= most:
        return list(items)
    others = [items[round(i * (len(items) - 1) / (most - 2))] for i in range(most - 1)]
    return sorted({*others, wanted})


def of_head(mass: np.ndarray, layer: int, head: int) -> np.ndarray:
    """Return one head of a layer, float32 [T]; head 0 is the mean over heads, head h is head h - 1."""
    return (mass[layer].mean(0) if head == 0 else mass[layer, head - 1]).astype(np.float32)


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


def write_values(
    fig: go.Figure, x: Iterable[float], y: Iterable[float], position: str, form: str = ".0%", **place: int
) -> go.Figure:
    """Write values beside their points; `position` is plotly's textposition, `place` row and column of the panel."""
    values = list(y)
    text = {
        "text": [f"\u2002{value:{form}}\u2002" for value in values],
        "textposition": position,
        "textfont": {"color": INK},
    }
    marker = {"color": INK, "size": 5}
    more = {"mode": "markers+text", "marker": marker, "cliponaxis": False, "hoverinfo": "skip", "showlegend": False}
    return fig.add_scatter(x=list(x), y=values, **text, **more, **place)


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
