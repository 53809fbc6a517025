"""Figures of a leaderboard: significant differences, quality by cost, kinds of question."""

import re
from collections.abc import Sequence
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from workbench.core.errors import BadInput
from workbench.experiments.leaderboard.board import Board
from workbench.experiments.leaderboard.ranking import OWN, boards
from workbench.experiments.leaderboard.standings import Standing
from workbench.methods.presets import METHODS
from workbench.metrics.measures import MEASURES, Measure
from workbench.plots.marks import chart
from workbench.plots.marks.lines import Panel, Series, line_chart
from workbench.plots.marks.method_names import in_words
from workbench.plots.marks.styles import SeriesStyle
from workbench.plots.marks.theme import BLOCKS, FAINT, INK, MUTED, escape_text, finish
from workbench.results import Results

MOST, NAME = 24, 68  # methods drawn; characters of a name
RATIO = re.compile(r" at \d+%$")  # of a name
DASHES = ("solid", "dot", "dash")


def of_results(
    found: Results, budget: float, model: str = "", data: str = "", by: str = "", most: int = MOST
) -> go.Figure | None:
    """Draw which methods differ significantly within a charged budget; None for fewer than three methods.

    `by` is the ranking measure, as in `boards`; at most the first `most` methods are drawn.
    """
    try:
        return critical(boards(found, (budget,), by, model, data, least=3)[0], most)
    except BadInput:
        return None


def measure_of(board: Board) -> Measure:
    """Return the ranking measure of a board."""
    return MEASURES[board.by]


def describe_board(board: Board) -> str:
    """Describe what a board was measured on."""
    return f"{board.model} on {board.data}, n = {board.n:,} questions, {board.device}, source: {board.source}."


def method_label(entry: Standing) -> str:
    """Return a method's name for a figure: the published one, else in words."""
    name = entry.method.partition(" at ")[0].removesuffix(OWN)
    return METHODS[name].title + entry.method.removeprefix(name) if name in METHODS else in_words(entry.fields)


def critical(board: Board, most: int = MOST) -> go.Figure:
    """Draw average ranks; bars join methods that paired tests do not distinguish (a critical-difference diagram)."""
    entries = board.entries[:most]
    fig = go.Figure()
    place = {entry.method: at for at, entry in enumerate(entries)}
    places = [entry.average_rank or 0 for entry in entries]
    room = 0.04 * (max(places) - min(places) or 1)
    known = [[name for name in group if name in place] for group in board.together]
    groups = [group for group in known if len(group) > 1]
    end = max(places) + 3 * room  # after the last number
    for number, group in enumerate(groups):
        rows = [entries[place[name]] for name in group]
        colour, end = BLOCKS[number % len(BLOCKS)], end + room / 2
        fig.add_scatter(
            x=[end, end],
            y=[place[group[0]] - 0.3, place[group[-1]] + 0.3],
            mode="lines",
            line={"color": colour, "width": 4},
            name="not distinguished: " + "; ".join(escape_text(method_label(row)) for row in rows),
            showlegend=False,
            hovertemplate="%{fullData.name}<extra></extra>",
        )
    fig.add_scatter(
        x=[entry.average_rank for entry in entries],
        y=list(range(len(entries))),
        mode="markers+text",
        text=[f"{entry.average_rank:.2f}" for entry in entries],
        textposition="middle right",
        textfont={"size": 12, "color": MUTED},
        marker={"size": 9, "color": INK},
        customdata=[[escape_text(method_label(entry))] for entry in entries],
        hovertemplate="<b>%{customdata[0]}</b><br>average rank %{x:.2f}<extra></extra>",
        showlegend=False,
    )
    names = [f"{entry.rank}. {named}" for entry, named in zip(entries, map(method_label, entries), strict=True)]
    names = [escape_text(name if len(name) <= NAME else f"{name[: NAME - 1]}…") for name in names]
    fig.update_yaxes(
        tickvals=list(range(len(names))), ticktext=names, range=[len(names) - 0.4, -0.6], ticks="", gridcolor=FAINT
    )
    fig.update_xaxes(
        title_text=f"average rank over questions, by {measure_of(board).words} (1 is best)",
        gridcolor=FAINT,
        range=[min(places) - room, end + room / 2],
    )
    caption = "Paired Wilcoxon tests at the 5% level, after Holm"
    if board.ranks.friedman is not None:
        caption += f" (Friedman p {'< 1e-16' if board.ranks.friedman < 1e-16 else f'= {board.ranks.friedman:.2g}'})"
    if len(board.entries) > most:
        caption = f"The best {most} of {len(board.entries)} methods. {caption}"
    caption += ". Nemenyi's critical difference: "
    return finish(
        fig,
        title=f"Which methods differ: {escape_text(board.title)}",
        notice="A bar at the right joins methods that these questions do not distinguish.",
        caption=f"{caption}{board.ranks.critical:.2f}. {escape_text(describe_board(board))}",
        height=26 * len(entries) + 20,
        left=40 + round(6.4 * max(map(len, names))),
    )


def pareto_figure(board: Board) -> go.Figure:
    """Draw the ranking measure against the charged share, with intervals; a line joins the Pareto front."""
    measure = measure_of(board)
    shown = [e for e in (*board.entries, *board.over) if e.charged is not None and board.by in e.scores]
    best = sorted((e for e in shown if e.front), key=lambda entry: entry.charged or 0)
    places = [e.charged or 0.0 for e in best], [e.scores[board.by][0] for e in best]
    lines = [Series("Pareto front", *places, look=SeriesStyle(MUTED, dash="dot"), width=1.5, mode="lines")]
    for at, entry in enumerate(shown):
        value, low, high = entry.scores[board.by]
        look = SeriesStyle(BLOCKS[at % len(BLOCKS)], "circle-open" if entry in board.over else "circle")
        hover = f"<b>{escape_text(method_label(entry))}</b><br>%{{x:.1%}} charged: {measure.format_value(value)}"
        ends = [entry.charged or 0.0], [value], [low], [high]
        lines.append(Series(escape_text(method_label(entry)), *ends, hover, look=look, size=9, mode="markers"))
    return line_chart(
        [Panel("", lines, *_axes(measure))],
        bars=True,
        height=360,
        title=f"Quality against charged share: {escape_text(board.title)}",
        caption=f"95% intervals over questions; rings: over the budget. {escape_text(describe_board(board))}",
    )


def curves(boards: Sequence[Board]) -> go.Figure | None:
    """Draw the ranking measure against the charged share: one line per method over the budgets of the same questions.

    None for fewer than two budgets. If there are many methods, only published ones are drawn.
    """
    if len({board.budget for board in boards}) < 2:
        return None
    first, measure = boards[0], measure_of(boards[0])
    found: dict[str, dict[float, tuple[float, float, float]]] = {}
    for entry in (entry for board in boards for entry in board.entries):
        if entry.charged is not None and first.by in entry.scores:
            found.setdefault(RATIO.sub("", method_label(entry)), {})[entry.charged] = entry.scores[first.by]
    if len(found) > MOST:
        published = {method.title for method in METHODS.values()}
        found = {name: points for name, points in found.items() if name in published}
    full = first.full and first.full.scores.get(first.by)
    beside = f" Full attention: {measure.format_value(full[0])}." if full else ""
    hover = f"%{{x:.1%}} charged: %{{y:{'.1%' if measure.percent else '.3f'}}}"
    lines = []
    for at, (name, points) in enumerate(found.items()):
        look = SeriesStyle(BLOCKS[at % len(BLOCKS)], dash=DASHES[at // len(BLOCKS) % len(DASHES)])
        mean, low, high = zip(*(points[share] for share in sorted(points)), strict=True)
        mode = "lines+markers" if len(points) > 1 else "markers"
        lines.append(Series(escape_text(name), sorted(points), mean, low, high, hover, look=look, mode=mode))
    return line_chart(
        [Panel("", lines, *_axes(measure))],
        bars=True,
        height=460,
        title=f"By charged share: {escape_text(first.model)} on {escape_text(first.data)}",
        caption=f"95% intervals over questions; click a name to hide it.{beside} {escape_text(describe_board(first))}",
    )


def _axes(measure: Measure) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return plotly's settings of the charged share (x) and of a measure (y)."""
    across = {"title_text": "charged share of the prompt's tokens", "tickformat": ".0%", "gridcolor": FAINT}
    return across, {
        "title_text": measure.axis,
        "gridcolor": FAINT,
        **({"tickformat": ".0%"} if measure.percent else {}),
    }


def kinds(board: Board) -> go.Figure | None:
    """Draw the ranking measure by kind of question; None for a single kind."""
    rows = [
        {"method": method_label(entry), "kind": kind, "value": value, "source": board.source, "n": board.n}
        for entry in board.entries
        for kind, value in entry.kinds.items()
    ]
    if not rows:
        return None
    measure = measure_of(board)
    return chart.dot_plot(
        pd.DataFrame(rows).assign(low=None, high=None),
        y="method",
        by="kind",
        axis=measure.axis,
        percent=measure.percent,
        title=f"By kind of question: {board.title}",
        spread=False,
    )
