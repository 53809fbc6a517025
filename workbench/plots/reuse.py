"""Is reuse even happening: where the tokens of the prompts came from, and the hit rate of the store."""

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from workbench.experiments.record import Record
from workbench.plots.theme import BLUE, INK, MODE_NAMES, RED, finish, legend_over, pale, with_title


def reuse(records: Sequence[dict], *, caption: str, notice: str) -> go.Figure:
    """`records`: {name, reused, encoded, question (tokens), hit_rate}, one per run."""
    parts = {
        "reused": ("passages read from the store", pale(BLUE, 0.55)),
        "encoded": ("passages computed", RED),
        "question": ("question computed", INK),
    }
    totals = [r["reused"] + r["encoded"] + r["question"] for r in records]
    fig = go.Figure()
    for field, (name, colour) in parts.items():
        fig.add_bar(
            x=[r[field] / total for r, total in zip(records, totals, strict=True)],
            y=[r["name"] for r in records],
            name=name,
            orientation="h",
            marker={"color": colour},
            customdata=[r[field] for r in records],
            hovertemplate="<b>%{y}</b><br>%{customdata:,} tokens = %{x:.1%}<extra>" + name + "</extra>",
        )
    for r in records:
        rate = "no store" if r["hit_rate"] is None else f"hit rate {r['hit_rate']:.0%}"
        fig.add_annotation(
            x=1.01, xref="paper", y=r["name"], text=rate, xanchor="left", showarrow=False, font={"size": 12}
        )
    height = 44 * len(records)
    fig.update_xaxes(with_title("share of all prompt tokens", tickformat=".0%", range=[0, 1]))
    fig.update_yaxes(autorange="reversed", showgrid=False)
    fig.update_layout(barmode="stack", bargap=0.35, legend=legend_over(height, 6, traceorder="normal"))
    return finish(
        fig,
        title="Is reuse even happening?",
        notice=notice,
        caption=caption,
        height=height,
        above=40,
        below=58,
        left=230,
        right=124,
    )


def token_sources(records: Mapping[str, Record]) -> list[dict]:
    """Return where the tokens of trials came from: records of `reuse`.

    `records` has a trial named "block", whose computed tokens are the questions alone.
    """
    question = records["block"].rows_computed
    return [
        {
            "name": MODE_NAMES[mode],
            "reused": record.rows_reused * record.n,
            "encoded": 0 if record.rows_reused else (record.rows_computed - question) * record.n,
            "question": question * record.n,
            "hit_rate": record.hit_rate if record.trial["mode"] == "block" else None,
        }
        for mode, record in records.items()
    ]


def trial_reuse(records: Mapping[str, Record], *, about: str) -> go.Figure:
    """Draw where the tokens of trials came from; `records` as in `token_sources`."""
    block = records["block"]
    return reuse(
        token_sources(records),
        notice=f"With its blocks in the store, a request computes {block.rows_computed:.0f} of "
        f"{block.prompt_tokens:.0f} tokens. While the questions above were asked, {block.hit_rate:.0%} of the look-ups "
        "found their block.",
        caption=f"{about}. The store starts empty: a block's first look-up is a miss and encodes it, later ones hit. "
        f"{block.device}.",
    )
