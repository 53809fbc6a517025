"""Positions of a prompt's tokens in a figure, so that all figures of a prompt mark the same token."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import plotly.graph_objects as go

from workbench.plots.marks.theme import RED

META = "tokens"  # the key in the figure's `layout.meta`
MARK = "selected token"  # name of the shapes that mark it


@dataclass(frozen=True)
class TokenAxes:
    """Axes of a figure that count tokens.

    length   tokens of the prompt
    cells    number of cells on the axes; `length` if one cell is one token
    x, y     whether this axis counts tokens
    text     the bars of the first trace are the tokens themselves, from token `first` on
    """

    length: int
    cells: int
    x: bool = True
    y: bool = False
    text: bool = False
    first: int = 0

    def cell_of(self, token: int) -> float:
        """Return the position of a token on an axis."""
        return float(token * self.cells // self.length)

    def token_at(self, place: float) -> int:
        """Return the first token of the cell at a position of an axis."""
        return min(self.length - 1, max(0, -(-round(place) * self.length // self.cells)))


def counts_tokens(fig: go.Figure, axes: TokenAxes) -> go.Figure:
    """Record in a figure which axes count tokens, and return the figure."""
    return fig.update_layout(meta={META: asdict(axes)})


def axes_of(fig: go.Figure) -> TokenAxes | None:
    """Return what `counts_tokens` recorded, or None."""
    meta = fig.layout.meta
    return TokenAxes(**meta[META]) if isinstance(meta, dict) and META in meta else None


def marks(fig: go.Figure, token: int) -> list[dict[str, Any]]:
    """Return the shapes that mark a token in every panel that shows it."""
    axes = axes_of(fig)
    if axes is None or not 0 <= token < axes.length:
        return []
    look = {"name": MARK, "line": {"color": RED, "width": 2}, "layer": "above"}
    if axes.text:
        return _around(fig.data[0], token - axes.first, look)
    at = axes.cell_of(token)
    shapes: list[dict[str, Any]] = []
    for x, y in _panels(fig):
        if axes.x:
            shapes.append(
                {"type": "line", "x0": at, "x1": at, "xref": x, "y0": 0, "y1": 1, "yref": f"{y} domain", **look}
            )
        if axes.y:
            shapes.append(
                {"type": "line", "y0": at, "y1": at, "yref": y, "x0": 0, "x1": 1, "xref": f"{x} domain", **look}
            )
    return shapes


def token_of(fig: go.Figure, trace: Any, point: int | Sequence[int]) -> int | None:
    """Return the token of a clicked point: its index in `trace`, or its row and column in a heat map."""
    axes = axes_of(fig)
    if axes is None:
        return None
    if axes.text:
        return axes.first + int(point) if isinstance(point, int) else None
    if not isinstance(point, int):
        row, column = point
        at, step, begin = (column, trace.dx, trace.x0) if axes.x else (row, trace.dy, trace.y0)
        place = at if begin is None else begin + at * (step or 1)
    else:
        place = point if trace.x is None else trace.x[point]
    return axes.token_at(float(place)) if isinstance(place, int | float) or hasattr(place, "dtype") else None


def _around(bars: Any, number: int, look: dict[str, Any]) -> list[dict[str, Any]]:
    if not 0 <= number < len(bars.y):
        return []
    left, line = float(bars.base[number]), float(bars.y[number])
    ends = {"x0": left, "x1": left + float(bars.x[number]), "y0": line - 0.46, "y1": line + 0.46}
    return [{"type": "rect", "xref": "x", "yref": "y", **ends, **look}]


def _panels(fig: go.Figure) -> list[tuple[str, str]]:
    """Return the (x, y) axes that have traces."""
    pairs = {(trace.xaxis or "x", trace.yaxis or "y"): None for trace in fig.data if hasattr(trace, "xaxis")}
    return list(pairs)
