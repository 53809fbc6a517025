"""Where the tokens of prompts came from: read from the store or computed."""

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import plotly.graph_objects as go

from workbench.experiments.record import Record
from workbench.plots.bars import Bars, bar_chart
from workbench.plots.styles import MODE_NAMES
from workbench.plots.theme import BLUE, INK, RED, Notes, pale


def reuse(records: Sequence[dict[str, Any]], **notes: Unpack[Notes]) -> go.Figure:
    """Draw where the tokens of prompts came from: {name, reused, encoded, question (tokens), hit_rate} of every run."""
    rows = [r["name"] for r in records]
    totals = [r["reused"] + r["encoded"] + r["question"] for r in records]
    drawn = []
    for key, name, colour in (
        ("reused", "passages read from the store", pale(BLUE, 0.55)),
        ("encoded", "passages computed", RED),
        ("question", "question computed", INK),
    ):
        values = [r[key] for r in records]
        shares = [value / total for value, total in zip(values, totals, strict=True)]
        hover = f"<b>%{{y}}</b><br>%{{customdata:,}} tokens = %{{x:.1%}}<extra>{name}</extra>"
        drawn.append(Bars(name, colour, rows, shares, hover, values))
    rates = ["no store" if r["hit_rate"] is None else f"hit rate {r['hit_rate']:.0%}" for r in records]
    place = {"x": 1.01, "xref": "paper", "font": {"size": 12}}
    return bar_chart(
        drawn,
        height=44 * len(records),
        left=230,
        right=124,
        x={"title_text": "share of all prompt tokens", "tickformat": ".0%", "range": [0, 1]},
        y={"autorange": "reversed", "showgrid": False},
        ends=[(row, rate, place) for row, rate in zip(rows, rates, strict=True)],
        title="Is reuse even happening?",
        **notes,
    )


def token_sources(records: Mapping[str, Record]) -> list[dict[str, Any]]:
    """Return records of `reuse`; the trial named "block" computes the tokens of the questions alone."""
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
