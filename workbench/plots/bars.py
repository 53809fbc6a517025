"""Bar charts: horizontal bars of several colours in rows, stacked, side by side or at places of their own."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import itemgetter
from textwrap import wrap
from typing import Any, Unpack

import numpy as np
import plotly.graph_objects as go
import torch

from workbench.core.blocks import Prompt
from workbench.core.masks import causal
from workbench.data.prompt_view import Reading
from workbench.experiments.record import Record
from workbench.plots.looks import MODE_NAMES, REUSE_STATUSES, STAGE_COLOURS, Look, block_hovers
from workbench.plots.reduce import MaskRule, visible_pairs
from workbench.plots.theme import BLUE, INK, PAPER, RED, RULE, Notes, Texts, block_colour, finish, pale


@dataclass(frozen=True)
class Bars:
    """Bars of one colour, one in each of N rows. `hover` is what a bar says, with `data` as plotly's customdata; `more`
    are further settings of plotly's bars."""

    name: str
    colour: str
    rows: Sequence[Any]
    values: Sequence[float | None]
    hover: str
    data: Sequence[Any] | None = None
    more: Mapping[str, Any] = field(default_factory=dict)


def bar_chart(
    bars: Sequence[Bars],
    *,
    height: int,
    x: Mapping[str, Any],
    y: Mapping[str, Any],
    mode: str = "stack",
    gap: float = 0.35,
    above: int = 40,
    below: int = 58,
    left: int = 72,
    right: int = 24,
    ends: Sequence[tuple[Any, str, Mapping[str, Any]]] = (),
    **texts: Unpack[Texts],
) -> go.Figure:
    """Draw horizontal bars under one legend.

    height     of the plot area, px
    x, y       plotly's settings of the axes
    mode, gap  plotly's barmode and bargap
    ends       (row, text, place) of texts that stand behind bars
    """
    fig = go.Figure()
    for each in bars:
        marker = {"color": each.colour, **each.more.get("marker", {})}
        values = {"y": list(each.rows), "x": list(each.values), "customdata": each.data, "hovertemplate": each.hover}
        fig.add_bar(orientation="h", name=each.name, **values, **{**each.more, "marker": marker})
    for row, text, place in ends:
        fig.add_annotation(y=row, text=text, xanchor="left", showarrow=False, **place)
    fig.update_xaxes(**x)
    fig.update_yaxes(**y)
    fig.update_layout(barmode=mode, bargap=gap, legend_traceorder="normal")
    return finish(fig, height=height, above=above, below=below, left=left, right=right, legend=6, **texts)


EDGE = {"line": {"color": PAPER, "width": 1}}  # of bars that touch


def breakdown(bars: Mapping[str, Mapping[str, float]], stages: Mapping[str, str], **texts: Unpack[Texts]) -> go.Figure:
    """Draw where the time goes: `bars` method → stage → seconds; `stages`: stage → its name, in the order drawn."""
    rows, totals = list(bars), {row: sum(seconds.values()) * 1e3 for row, seconds in bars.items()}
    longest = max(totals.values())
    drawn = []
    for stage, name in stages.items():
        values = [bars[row].get(stage, 0.0) * 1e3 for row in rows]
        shares = [value / totals[row] if totals[row] else 0.0 for row, value in zip(rows, values, strict=True)]
        labels = [spoken(value, "") if value > 0.06 * longest else "" for value in values]
        font = {"size": 11, "color": PAPER if stage in ("choose", "attend") else INK}
        label = {"text": labels, "textposition": "inside", "insidetextanchor": "middle", "textangle": 0}
        hover = f"<b>%{{y}}</b><br>{name}: %{{x:.3g}} ms, %{{customdata:.0%}}<extra></extra>"
        more = {**label, "textfont": font, "marker": EDGE}
        drawn.append(Bars(name, STAGE_COLOURS[stage], rows, values, hover, shares, more))
    return bar_chart(
        drawn,
        height=34 * len(rows) + 16,
        gap=0.28,
        below=52,
        left=40 + 7 * max(map(len, rows)),
        right=40,
        x={"title_text": "milliseconds to the first token", "range": [0, 1.14 * longest]},
        y={"categoryorder": "array", "categoryarray": rows[::-1], "ticks": "", "showgrid": False},
        ends=[(row, f"<b>{spoken(totals[row])}</b>", {"x": totals[row], "xshift": 6}) for row in rows],
        **texts,
    )


def listed(stages: Mapping[str, str], seconds: Mapping[str, float]) -> str:
    """List the stages by how much they take, for a sentence: "attention 62%, …"."""
    total = sum(seconds.values()) or 1.0
    ordered = sorted(stages, key=lambda stage: -seconds.get(stage, 0.0))
    return ", ".join(f"{stages[stage]} {seconds.get(stage, 0.0) / total:.0%}" for stage in ordered)


def spoken(milliseconds: float, unit: str = " ms") -> str:
    """Return three digits: "7.87 ms", "1,430 ms"."""
    return (f"{milliseconds:,.0f}" if milliseconds >= 100 else f"{milliseconds:.3g}") + unit


def savings(records: Sequence[dict], **notes: Unpack[Notes]) -> go.Figure:
    """Draw the share of visible pairs under every mask, and of those computed when the request comes.

    `records`: {mask, pairs, computed, causal, rows, length}: visible pairs, those of rows computed on request, all
    causal pairs, rows computed on request and tokens of the prompt.
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
        **notes,
    )


def count_pairs(rules: Mapping[str, MaskRule], prompt: Prompt, cached: Collection[str]) -> list[dict]:
    """Count pairs for `savings`; under the rules named in `cached` a request computes the question only."""
    length = len(prompt)
    records = []
    for name, rule in rules.items():
        rows = prompt.question if name in cached else torch.arange(length)
        pairs = {"pairs": visible_pairs(rule, length), "computed": visible_pairs(rule, length, rows)}
        sizes = {"causal": visible_pairs(causal, length), "rows": len(rows), "length": length}
        records.append({"mask": name.split(" (")[0], **pairs, **sizes})
    return records


def request_savings(records: Sequence[dict], source: str) -> go.Figure:
    """Draw `count_pairs` of one prompt; `source` says where its text comes from."""
    fewest = min(records, key=itemgetter("rows"))
    return savings(
        records,
        notice=f"{fewest['mask']}: {fewest['rows']} of {fewest['length']} tokens are computed when the request comes; "
        "the other rows wait in the cache.",
        caption=f"Text: {source}. Counted exactly from the masks: pairs (row, column) with column ≤ row.",
    )


def reuse(records: Sequence[dict], **notes: Unpack[Notes]) -> go.Figure:
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


def token_sources(records: Mapping[str, Record]) -> list[dict]:
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


def history(records: Sequence[Mapping[str, Any]], *, unit: str, **texts: Unpack[Texts]) -> go.Figure:
    """Draw prompts that follow one another, a bar each: which of their blocks were kept, moved, recalled or encoded.

    `records` as of `session_replay.follow` (fates, moves, sizes, labels, question); `unit` is what a bar is.
    """
    bars: dict[str, list[tuple]] = {status: [] for status in (*REUSE_STATUSES, "question")}
    for at, record in enumerate(records):
        *starts, end = accumulate(record["sizes"], initial=0)
        statuses = zip(record["fates"], starts, record["sizes"], block_hovers(record), strict=True)
        for status, *place in statuses:
            bars[status].append((at, *place))
        label = record["label"].replace("<", "&lt;")
        text = f"<b>question, {record['question']} tokens</b><br>{label}"
        bars["question"].append((at, end, record["question"], text))
    drawn = []
    for status, placed in bars.items():
        rows, sizes = ([bar[i] for bar in placed] or [None] for i in (0, 2))
        starts, hovers = ([bar[i] for bar in placed] for i in (1, 3))
        look = REUSE_STATUSES.get(status, Look(INK, name=status))
        more = {"base": starts, "marker": EDGE}
        drawn.append(Bars(look.name, look.colour, rows, sizes, "%{customdata}<extra></extra>", hovers, more))
    count = len(records)
    ticks = {"tickvals": list(range(count)), "ticktext": [str(record["step"] + 1) for record in records]}
    return bar_chart(
        drawn,
        height=max(90, 24 * count),
        mode="overlay",
        gap=0.25,
        left=84,
        x={"title_text": "position (tokens)", "showgrid": False},
        y={"title_text": unit, "showgrid": False, "ticks": "", "range": [count - 0.5, -0.5], **ticks},
        **texts,
    )


def strip(
    block_of: np.ndarray, pieces: Sequence[str], *, marked: Collection[int] = (), **notes: Unpack[Notes]
) -> go.Figure:
    """Draw the prompt as a strip of blocks: how long each is, and what it says.

    `block_of` [T] block of every token; `pieces` the text of every block; `marked` blocks (needed for the answer) get a
    star.
    """
    sizes = np.bincount(block_of)
    count = len(sizes)
    label = {"textposition": "inside", "insidetextanchor": "middle", "textangle": 0, "constraintext": "none"}
    drawn = []
    for block, (size, piece) in enumerate(zip(sizes, pieces, strict=True)):
        last = block == count - 1
        text = "<br>".join(wrap(piece.replace("<", "&lt;"), 70))
        name = "question" if last else f"block {block}"
        hover = f"<b>{name}, {size} tokens</b><br>{text}<extra></extra>"
        sign = "Q" if last else f"{block}{'★' if block in marked else ''}"
        font = {"color": PAPER, "size": 12}
        more = {**label, "text": sign, "textfont": font, "showlegend": False, "marker": EDGE}
        drawn.append(Bars("", block_colour(block, count), [""], [int(size)], hover, more=more))
    return bar_chart(
        drawn,
        height=46,
        gap=0,
        above=14,
        below=52,
        left=24,
        x={"title_text": "position (tokens)", "range": [0, int(sizes.sum())], "showgrid": False},
        y={"visible": False},
        title="The prompt and its blocks",
        **notes,
    )


def question_of(view: Reading) -> str:
    """Return the question of `view`, and the expected answers where they are known."""
    expected = f" Expected: {', '.join(view.answers)}." if view.answers else ""
    return f"“{view.question}”{expected}"


def prompt_strip(view: Reading) -> go.Figure:
    """Draw the blocks of one prompt under its question."""
    prompt = view.prompt
    return strip(
        view.block_of,
        view.pieces,
        marked=view.supporting,
        notice=question_of(view),
        caption=f"Text: {view.source}, {len(prompt)} tokens in {len(prompt.blocks)} blocks. "
        "★ is needed for the answer, Q is the question. Hover to read a block.",
    )
