"""Pairs that masks leave visible, and those computed when the request comes."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
import torch

from workbench.core.blocks import Prompt
from workbench.core.masks import causal
from workbench.plots.marks.bars import Bars, bar_chart
from workbench.plots.marks.theme import BLUE, RULE
from workbench.plots.tiles.reduce import MaskRule, visible_pairs


def request_savings(records: Sequence[dict[str, Any]], source: str) -> go.Figure:
    """Draw the share of visible pairs under every mask, and of those computed when the request comes.

    `source` says where the text comes from. `records`, of `count_pairs`: {mask, pairs, computed, causal, rows, length}:
    visible pairs, those of rows computed on request, all causal pairs, its rows and all tokens.
    """
    rows = [r["mask"] for r in records]
    drawn = []
    for key, name, colour, offset in (
        ("pairs", "visible pairs", RULE, -0.39),
        ("computed", "of these, computed when the request comes", BLUE, 0.01),
    ):
        shares = [r[key] / r["causal"] for r in records]
        data = [[r[key], r["rows"], r["length"]] for r in records]
        hover = "<b>%{y}</b><br>%{customdata[0]:,} pairs = %{x:.1%} of the causal ones<br>%{customdata[1]:,} of "
        hover += f"%{{customdata[2]:,}} tokens computed on request<extra>{name}</extra>"
        label = {"text": [f" {share:.1%}" for share in shares], "textposition": "outside", "cliponaxis": False}
        drawn.append(Bars(name, colour, rows, shares, hover, data, {**label, "width": 0.38, "offset": offset}))
    return bar_chart(
        drawn,
        height=46 * len(rows),
        mode="group",
        left=230,
        x={"title_text": "share of the pairs of full (causal) attention", "tickformat": ".0%", "range": [0, 1.06]},
        y={"autorange": "reversed", "showgrid": False},
        title="What the masks leave to do",
        caption=f"Text: {source}. Counted exactly from the masks: pairs (row, column) with column ≤ row.",
    )


def count_pairs(rules: Mapping[str, MaskRule], prompt: Prompt, cached: Collection[str]) -> list[dict[str, Any]]:
    """Count pairs for `request_savings`; under the rules named in `cached` a request computes the question only."""
    length = len(prompt)
    records = []
    for name, rule in rules.items():
        rows = prompt.question if name in cached else torch.arange(length)
        pairs = {"pairs": visible_pairs(rule, length), "computed": visible_pairs(rule, length, rows)}
        sizes = {"causal": visible_pairs(causal, length), "rows": len(rows), "length": length}
        records.append({"mask": name.split(" (")[0], **pairs, **sizes})
    return records
