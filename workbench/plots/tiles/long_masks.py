"""Choices of sparse methods over a long prompt, seen through a frame of its rows."""

from collections.abc import Mapping
from itertools import product

import numpy as np
import plotly.graph_objects as go

from workbench.metrics.tiles.tile_records import Framed
from workbench.plots.marks.table import table
from workbench.plots.tiles.tile_overview import REDUCTIONS, overview, reduced
from workbench.plots.tiles.tile_recall import (
    Span,
    in_window,
    maps,
    span_of,
)


def long_overview(
    choices: Mapping[str, Framed], specs: Mapping[str, str], length: int, *, cells: int, states: str
) -> go.Figure:
    """Draw the choices for a prompt of `length` tokens, at most `cells` a side; `states` says whose attention it is."""
    panels: dict[str, dict[str, np.ndarray]] = {name: {} for name in choices}
    for name, choice in choices.items():
        for head, how in product((1, 0), REDUCTIONS):
            kept = choice.tiles.kept[head].cpu().numpy()
            panels[name][f"head {head}: {REDUCTIONS[how]}"] = reduced(kept, cells, how)
    return overview(
        panels,
        Span.whole(range(length)),
        detail=_frame(choices),
        caption=f"{states} All {length:,} × {length:,} tokens of one head in at most {cells} × {cells} cells; the menu "
        "shows the other head, and by max where anything is kept. The frame is below. Head 1 looks for its topic, "
        f"head 0 nearby. {', '.join(specs[name] for name in choices)}.",
    )


def frame_maps(choices: Mapping[str, Framed], *, share: float, device: str) -> go.Figure:
    """Draw the frame of every choice for a long prompt over the true attention of its head 1."""
    windows = {name: choice.frames[1].at(choice.frames[1].rows) for name, choice in choices.items()}
    return maps(
        {name: [[in_window(window, choices[name].tiles.kept.shape[2])]] for name, window in windows.items()},
        _frame(choices),
        layers=[0],
        heads=[1],
        title="The frame, tile by tile",
        caption=f"Orange was dropped though needed for {share:.0%}. Head 1 of the made-up states; "
        f"true attention of {len(_frame(choices).rows):,} rows over all keys "
        f"before them. {device}.",
    )


def choosing_table(choices: Mapping[str, Framed], length: int, device: str) -> go.Figure:
    """Tabulate time, density and attention kept of the choices for a long prompt of two heads."""
    rows = []
    for name, choice in choices.items():
        first, second = choice.record(0), choice.record(1)
        shares = [f"{r['density']:.1%}" for r in (first, second)] + [f"{r['attention']:.0%}" for r in (first, second)]
        rows.append([name, f"{choice.seconds:.2f} s", *shares])
    return table(
        ["method", "time to choose", "tiles kept, head 0", "head 1", "attention kept, head 0", "head 1"],
        rows,
        title=f"Choosing for {length:,} tokens",
        caption=f"2 query heads, torch on {device}, measured once, beside whatever else the machine did; a kernel for "
        "the choice is another matter. Attention kept: of the rows in the frame.",
        widths=[2, 1.3, 1.4, 1, 1.6, 1],
    )


def _frame(choices: Mapping[str, Framed]) -> Span:
    window = next(iter(choices.values())).frames[1]
    return span_of(window.at(window.rows))
