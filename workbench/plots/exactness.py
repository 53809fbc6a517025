"""Cached and moved blocks against blocks computed in place, for every supported family."""

from collections.abc import Sequence
from math import log10

import plotly.graph_objects as go

from workbench.metrics.position_encoding import TOLERANCE
from workbench.plots.table import table
from workbench.plots.theme import BLUE, INK, MUTED, ORANGE, RED, finish, legend_over, with_title


def exactness(records: Sequence[dict], tolerance: float, *, caption: str, notice: str) -> go.Figure:
    """`records`: {family, keys, values, logits (largest absolute differences), naive (same for the logits, keys not
    moved)}."""
    floor = 1e-9  # where an exact zero is drawn
    names = [r["family"] for r in records]
    fig = go.Figure()
    marks = {
        "keys": ("largest difference in keys", BLUE, "circle"),
        "values": ("in values", ORANGE, "square"),
        "logits": ("in the question's logits", INK, "diamond"),
        "naive": ("in the logits with naive positions", RED, "x"),
    }
    for field, (name, colour, symbol) in marks.items():
        fig.add_scatter(
            x=[max(r[field], floor) for r in records], y=names, mode="markers", name=name,
            marker={"color": colour, "symbol": symbol, "size": 10}, customdata=[r[field] for r in records],
            hovertemplate="<b>%{y}</b><br>" + name + ": %{customdata:.2e}<extra></extra>",
        )  # fmt: skip
    fig.add_vline(tolerance, line={"color": MUTED, "dash": "dot", "width": 1})
    fig.add_annotation(
        x=log10(tolerance), xref="x", y=1, yref="paper", yanchor="bottom", xanchor="left", showarrow=False,
        text=f"tolerance {tolerance:.0e}", font={"size": 11, "color": MUTED},
    )  # fmt: skip
    fig.update_xaxes(with_title("largest absolute difference (fp32)", type="log", dtick=1, exponentformat="power"))
    fig.update_yaxes(autorange="reversed", showgrid=True)
    height = 30 * len(names)
    fig.update_layout(legend=legend_over(height, 22))
    return finish(
        fig, title="Moved blocks equal blocks computed in place", notice=notice, caption=caption, height=height,
        above=56, below=58, left=170,
    )  # fmt: skip


def family_differences(records: Sequence[dict], *, seed: int, device: str) -> go.Figure:
    """Draw `metrics.position_encoding.exactness` of every family against the tolerance of the tests."""
    return exactness(
        records,
        TOLERANCE,
        notice="Shifted keys, values and the question's logits lie left of the tolerance in every family. The crosses "
        "are the logits where keys are not shifted.",
        caption="Random models of the real architectures in miniature (3 layers, 64 wide), 8 blocks of 12 tokens and a "
        f"question of 12, shifted by up to {records[0]['distance']} tokens; fp32, seed {seed}, {device}.",
    )


def family_table(records: Sequence[dict]) -> go.Figure:
    """Draw the same differences as a table; the last columns are of naive positions."""
    fields = ("keys", "values", "logits", "naive")
    return table(
        ["family", "keys", "values", "logits", "logits, naive", "times worse"],
        [
            [r["family"], *(f"{r[field]:.1e}" for field in fields), f"{r['naive'] / max(r['logits'], 1e-9):,.0f} ×"]
            for r in records
        ],
        widths=[1.6, 1, 1, 1, 1.1, 1],
        title="Largest absolute differences",
        notice="Shifted against computed in place. The last columns leave the keys where they were cached.",
        caption=f"As above; the tolerance of the tests is {TOLERANCE:.0e}.",
    )
