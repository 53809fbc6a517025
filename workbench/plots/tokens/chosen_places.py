"""Where selectors choose tokens, and how far two of them choose the same."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Unpack

import numpy as np
import plotly.graph_objects as go

from workbench.plots.marks.controls import button, switch
from workbench.plots.marks.line_styles import selector_looks
from workbench.plots.marks.lines import profile, profiles
from workbench.plots.marks.styles import SELECTORS
from workbench.plots.marks.theme import BLUE, PAPER, Texts, clear, finish


def agreement(matrices: Mapping[str, np.ndarray], names: Sequence[str], **texts: Unpack[Texts]) -> go.Figure:
    """Draw how far methods choose the same tokens: measure → [M, M] shares from 0 to 1; a menu picks the measure."""
    fig = go.Figure()
    columns = [name.replace(" (", "<br>(").replace(": ", "<br>") for name in names]
    for i, matrix in enumerate(matrices.values()):
        fig.add_heatmap(
            z=np.where(np.eye(len(names), dtype=bool), np.nan, matrix).astype(np.float32),
            x=columns,
            y=list(names),
            zmin=0,
            zmax=1,
            colorscale=[[0, PAPER], [1, clear(BLUE, 0.75)]],
            **{"showscale": False, "hoverongaps": False, "xgap": 2, "ygap": 2},
            visible=i == 0,
            texttemplate="%{z:.0%}",
            hovertemplate="%{y}<br>%{x}<br>%{z:.1%} in common<extra></extra>",
        )
    height = 46 * len(names)
    buttons = [button(label, [other == label for other in matrices]) for label in matrices]
    fig.update_layout(updatemenus=[switch(buttons, height, 8)])
    fig.update_xaxes(showgrid=False, ticks="", showline=False, tickangle=0)
    fig.update_yaxes(autorange="reversed", showgrid=False, ticks="", showline=False)
    return finish(fig, height=height, above=46, below=56, left=24 + 7 * max(map(len, names)), **texts)


def first_tenth(records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the mean of the first stretch of blocks by name: `records` of `selection.places`."""
    offsets = [r for r in records if r["by"] == "offset"]
    first = min(r["at"] for r in offsets)
    return {r["name"]: r["mean"] for r in offsets if r["at"] == first}


def where_chosen(
    records: Sequence[Mapping[str, Any]], selectors: Collection[str], *, sample: str, about: str
) -> go.Figure:
    """Draw where the chosen tokens stand: `records` of `selection.places`; `sample` says which prompts."""
    offsets, ranks = ([r for r in records if r["by"] == by] for by in ("offset", "rank"))
    across = "position in the block (0 start, 1 end)"
    return profiles(
        [
            profile("by position in the block", offsets, across, "share recomputed", percent=True),
            profile("by rank of the block", ranks, "rank of the block", percent=True),
        ],
        title="Where the chosen tokens stand",
        caption=f"{sample}; mean and 95% bootstrap interval. {about}.",
        lines=2,
        **selector_looks(selectors),
    )


def common_tokens(
    matrices: Mapping[str, np.ndarray], selectors: Collection[str], *, ratio: float, sample: str, about: str
) -> go.Figure:
    """Draw how far selectors agree: measure → [M, M]; the first measure is the share of the smaller choice."""
    return agreement(
        matrices,
        [SELECTORS.name_of(spec) for spec in selectors],
        title="Tokens that two selectors have in common",
        caption=f"Mean over {sample}; by chance two choices share {ratio:.0%}. {about}.",
    )
