"""The blocks of a long prompt as cells, frame after frame under a slider: kept, moved, recalled or encoded."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from workbench.plots.controls import frame_slider
from workbench.plots.looks import REUSE_STATUSES, block_hovers
from workbench.plots.theme import finish, legend_over, with_title

CELL = 15  # px


def frames(
    records: Sequence[Mapping[str, Any]],
    *,
    columns: int,
    rows: Sequence[str],
    caption: str,
    notice: str,
    active: int = 0,
) -> go.Figure:
    """`records` as of `turnover.follow`. The first block (the rules) is left out; the others fill rows of `columns`
    cells, one for each name of `rows`. The slider begins at record `active`."""
    cells = [_cells(record, columns, len(rows)) for record in records]
    z, texts = cells[active]
    x = list(range(1, columns + 1))
    fig = go.Figure(
        go.Heatmap(
            z=z, text=texts, x=x, y=list(rows), xgap=1.5, ygap=1.5, zmin=-0.5, zmax=len(REUSE_STATUSES) - 0.5,
            showscale=False, colorscale=_steps(), hovertemplate="%{text}<extra></extra>", hoverongaps=False,
        )
    )  # fmt: skip
    for status, colour in {k: v.colour for k, v in REUSE_STATUSES.items()}.items():
        marker = {"color": colour, "symbol": "square", "size": 11}
        fig.add_scatter(
            x=[None], y=[None], mode="markers", marker=marker, name=REUSE_STATUSES[status].name, hoverinfo="skip"
        )
    fig.frames = [
        go.Frame(name=str(at), data=[go.Heatmap(z=z, text=texts)], traces=[0]) for at, (z, texts) in enumerate(cells)
    ]
    height = max(120, 2 * CELL * len(rows))
    fig.update_layout(
        sliders=[frame_slider([said(r) for r in records], active, "frame ", spoken=True, pad=56)],
        legend=legend_over(height, 6, itemclick=False),
    )
    ticks = [1, *range(8, columns + 1, 8)]
    fig.update_xaxes(
        with_title("block of the table", tickvals=ticks, showgrid=False, ticks="", range=[0.4, columns + 0.6])
    )
    fig.update_yaxes(autorange="reversed", showgrid=False, ticks="", type="category")
    return finish(
        fig, title="Frame after frame", notice=notice, caption=caption, height=height, above=40, below=148, left=60
    )


def said(record: Mapping[str, Any]) -> str:
    """One line on a frame: what happened and what it took."""
    counts = ", ".join(
        f"{record[f'blocks_{status}']} {status}" for status in REUSE_STATUSES if record[f"blocks_{status}"]
    )
    return f"{record['step'] + 1}: {record['label'].replace('<', '&lt;')} — blocks: {counts}"


def _cells(record: Mapping[str, Any], columns: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Fate [rows, columns] (nan: no block) and hover text of every cell."""
    number = {status: i for i, status in enumerate(REUSE_STATUSES)}
    z, texts = np.full(rows * columns, np.nan, np.float32), np.full(rows * columns, "", object)
    statuses, hover = record["fates"][1:], block_hovers(record)[1:]
    z[: len(statuses)] = [number[status] for status in statuses]
    texts[: len(hover)] = hover
    return z.reshape(rows, columns), texts.reshape(rows, columns)


def _steps() -> list[list]:
    edges = np.linspace(0, 1, len(REUSE_STATUSES) + 1)
    return [
        [edge, colour]
        for i, colour in enumerate(v.colour for v in REUSE_STATUSES.values())
        for edge in (edges[i], edges[i + 1])
    ]
