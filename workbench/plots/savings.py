"""What a mask shows and what reuse saves: share of visible pairs, and of those computed when the request comes."""

from collections.abc import Sequence

import plotly.graph_objects as go

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
