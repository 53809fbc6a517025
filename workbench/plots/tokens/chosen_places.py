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
from workbench.plots.reports.findings import judged


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


def evenness(offsets: Sequence[Mapping[str, Any]]) -> str:
    """Say whether CacheBlend favours the head of a block and FusionRAG's choice is more even, as figure 8 shows them.

    `offsets`: the records of `metrics.kv.selection.places` by position in the block. "" where one of both is missing.
    """
    shares = {
        name: [r["mean"] for r in offsets if r["name"] == SELECTORS.name_of(name)]
        for name in ("kv_deviation", "query_guided")
    }
    if not all(shares.values()):
        return ""
    heads = {name: values[0] / max(sum(values) / len(values), 1e-9) for name, values in shares.items()}
    holds = heads["kv_deviation"] > 1 and abs(heads["query_guided"] - 1) < abs(heads["kv_deviation"] - 1)
    claim = "CacheBlend favours the start of chunks and question-guided selection is more even (figure 8)"
    said = " and ".join(f"{SELECTORS.name_of(name)} {heads[name]:.1f} times" for name in heads)
    return f"There {said} its mean. {judged('FusionRAG', claim, holds)}"


def where_chosen(
    records: Sequence[Mapping[str, Any]], selectors: Collection[str], *, sample: str, about: str
) -> go.Figure:
    """Draw where the chosen tokens stand: `records` of `selection.places`; `sample` says which prompts."""
    heads = first_tenth(records)
    most, least = max(heads, key=heads.__getitem__), min(heads, key=heads.__getitem__)
    offsets, ranks = ([r for r in records if r["by"] == by] for by in ("offset", "rank"))
    across = "position in the block (0 start, 1 end)"
    return profiles(
        [
            profile("by position in the block", offsets, across, "share recomputed", percent=True),
            profile("by rank of the block", ranks, "rank of the block", percent=True),
        ],
        title="Where the chosen tokens stand",
        notice=f"Of the first tenth of a block, {most} recomputes {heads[most]:.0%}, {least} {heads[least]:.0%}. An "
        f"even choice would be a flat line. {evenness(offsets)}",
        caption=f"{sample}; mean and 95% bootstrap interval. {about}.",
        lines=2,
        **selector_looks(selectors),
    )


def common_tokens(
    matrices: Mapping[str, np.ndarray], selectors: Collection[str], *, ratio: float, sample: str, about: str
) -> go.Figure:
    """Draw how far selectors agree: measure → [M, M]; the first measure is the share of the smaller choice."""
    names = [SELECTORS.name_of(spec) for spec in selectors]
    share = next(iter(matrices.values()))
    apart = np.where(np.eye(len(names), dtype=bool), np.nan, share)
    row, column = np.unravel_index(np.nanargmax(apart), apart.shape) if len(names) > 1 else (0, 0)
    return agreement(
        matrices,
        names,
        title="Tokens that two selectors have in common",
        notice=f"By chance two choices of {ratio:.0%} share {ratio:.0%}. The two that agree most here are {names[row]} "
        f"and {names[column]}: {apart[row, column]:.0%}.",
        caption=f"Mean over {sample}. {about}.",
    )
