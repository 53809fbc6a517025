"""What a mask shows and what reuse saves: share of visible pairs, and of those computed when the request comes."""

from collections.abc import Collection, Mapping, Sequence
from operator import itemgetter

import plotly.graph_objects as go
import torch

from workbench.core.blocks import Prompt
from workbench.core.masks import causal
from workbench.plots.reduce import MaskRule, visible_pairs
from workbench.plots.theme import BLUE, RULE, finish, legend_over, with_title


def savings(records: Sequence[dict], *, caption: str, notice: str) -> go.Figure:
    """`records`: {mask, pairs, computed, causal, rows, length}: visible pairs, those of rows computed on request,
    all causal
    pairs, rows computed on request and tokens of the prompt."""
    names = [r["mask"] for r in records]
    fig = go.Figure()
    for field, name, colour, shift in (
        ("pairs", "visible pairs", RULE, -0.2),
        ("computed", "of these, computed when the request comes", BLUE, 0.2),
    ):
        fig.add_bar(
            x=[r[field] / r["causal"] for r in records],
            y=names,
            orientation="h",
            name=name,
            marker={"color": colour},
            text=[f" {r[field] / r['causal']:.1%}" for r in records],
            textposition="outside",
            cliponaxis=False,
            customdata=[[r[field], r["rows"], r["length"]] for r in records],
            width=0.38,
            offset=shift - 0.19,
            hovertemplate="<b>%{y}</b><br>%{customdata[0]:,} pairs = %{x:.1%} of the causal "
            "ones<br>%{customdata[1]:,} of "
            "%{customdata[2]:,} tokens computed on request<extra>" + name + "</extra>",
        )
    height = 46 * len(names)
    fig.update_xaxes(with_title("share of the pairs of full (causal) attention", tickformat=".0%", range=[0, 1.06]))
    fig.update_yaxes(autorange="reversed", showgrid=False)
    fig.update_layout(legend=legend_over(height, 6, traceorder="normal"))
    return finish(
        fig,
        title="What the masks leave to do",
        notice=notice,
        caption=caption,
        height=height,
        above=40,
        below=58,
        left=230,
    )


def count_pairs(rules: Mapping[str, MaskRule], prompt: Prompt, cached: Collection[str]) -> list[dict]:
    """Count the pairs of every mask rule: records of `savings`.

    Under the rules named in `cached` the passages come from a cache, so that a request computes the question only.
    """
    length = len(prompt)
    records = []
    for name, rule in rules.items():
        rows = prompt.question if name in cached else torch.arange(length)
        records.append(
            {
                "mask": name.split(" (")[0],
                "pairs": visible_pairs(rule, length),
                "computed": visible_pairs(rule, length, rows),
                "causal": visible_pairs(causal, length),
                "rows": len(rows),
                "length": length,
            }
        )
    return records


def request_savings(records: Sequence[dict], source: str) -> go.Figure:
    """Draw `count_pairs` of one prompt; `source` says where its text comes from."""
    fewest = min(records, key=itemgetter("rows"))
    return savings(
        records,
        notice=f"Full Reuse computes {fewest['rows']} of {fewest['length']} tokens when the request comes; the other "
        "rows wait in the cache.",
        caption=f"Text: {source}. Counted exactly from the masks: pairs (row, column) with column ≤ row.",
    )
