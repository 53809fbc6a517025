"""A leaderboard as one self-contained HTML page: tables that sort by a click on a heading, and figures."""

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Literal

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from workbench.app.console.text import in_full, labels, plain
from workbench.app.leaderboard import columns
from workbench.experiments.leaderboard import HIGHER
from workbench.experiments.leaderboard.board import Board
from workbench.experiments.leaderboard.standings import Standing
from workbench.methods.presets import METHODS
from workbench.metrics.measures import MEASURES
from workbench.plots.marks.pages import inert, render
from workbench.plots.reports import leaderboard as drawn


def page(boards: Sequence[Board], notes: Sequence[str] = (), budget: float | None = None) -> str:
    """Return the page; `notes` say what was left out. Of several budgets only `budget`'s tables are shown."""
    shown: list[dict[str, Any]] = []
    for _, group in groupby(boards, _same):
        same = list(group)
        few = [one for one in same if one.budget == budget] or same
        shown += [_board(len(shown) + number, board) for number, board in enumerate(few)]
        if figure := drawn.curves(same):
            first = shown[-len(few)]
            first["figures"].insert(0, (f"curves-{len(shown)}", inert(json.loads(figure.to_json()))))
    return render("leaderboard", title="Leaderboard", boards=shown, notes=list(notes))


def _same(board: Board) -> tuple[Any, ...]:
    """Return what the boards of one figure have in common."""
    return board.source, board.model, board.data, board.passages, board.run, board.by


def _board(number: int, board: Board) -> dict[str, Any]:
    figures = {"apart": drawn.critical(board), "front": drawn.pareto_figure(board), "kinds": drawn.kinds(board)}
    names = columns.measured_columns(board)
    rows = [_row(board.full, names, "full")] if board.full else []
    rows += [_row(entry, names, "first" if entry.rank == 1 else "") for entry in board.entries]
    rows += [_row(entry, names, "over") for entry in board.over]
    lines = [f"Not told apart: {'; '.join(group)}." for group in board.together]
    if board.over:
        lines.append(f"Over the budget: {'; '.join(entry.method for entry in board.over)}.")
    if board.unmeasured:
        lines.append(f"Not ranked, without {columns.head()[board.by]}: {'; '.join(board.unmeasured)}.")
    lines += [f"{line[:1].upper()}{line[1:]}." for line in columns.costs(board)]
    return {
        "name": board.title + ("" if board.run is None else f", training run {board.run}"),
        "about": f"{drawn.describe_board(board)} Ranked by the average rank over questions, "
        f"by {drawn.measure_of(board).words}.",
        "unkept": f"{board.budget_note[:1].upper()}{board.budget_note[1:]}.",
        "head": [columns.head()[name] for name in names],
        "rows": rows,
        "lines": lines,
        "reported": list(map(_reported, filter(_known, (*board.entries, *board.over)))),
        "figures": [
            (f"{name}-{number}", inert(json.loads(figure.to_json())))
            for name, figure in figures.items()
            if figure is not None
        ],
    }


def _known(entry: Standing) -> bool:
    return entry.method in METHODS and bool(METHODS[entry.method].reported)


def _reported(entry: Standing) -> tuple[str, str, str, str]:
    """Return a method, its source, its reported results, and its score on this board compared with full attention."""
    published, name = METHODS[entry.method], next((one for one in REPORTED if one in entry.gaps), "")
    here = f"{columns.head()[name]} {columns.cells(entry)[name][1]}, {columns.gap(entry, name)}" if name else "–"
    return published.title, published.source, published.reported, here


def _row(entry: Standing, names: Sequence[str], look: str) -> dict[str, Any]:
    found = columns.cells(entry)
    made = []
    for name in names:
        value, text = found[name]
        key = entry.method if name == "method" else "" if value is None else f"{value:.9g}"
        cell = {"value": key, "text": text}
        if name in HIGHER:
            cell |= {"ends": columns.ends(entry, name), "gap": f"{columns.gap(entry, name)} from full attention"}
        made.append(cell)
    return {"look": look, "cells": made}


REPORTED = ("f1", "em", "kl")  # measures to compare with published results, the first known one is used
QUALITY = ("rank", "method", "average", *HIGHER)
COSTS = ("method", "charged", "ttft", "speedup", "storage", "preprocess", "front")
SHORT = {
    "average": "avg",
    "preprocess": "prep, ms/tok",
    "storage": "MB/1,000 tok",
    "speedup": "speedup",
    "method": "",
    "nll": "nll",
}
KINDS = 4  # columns for kinds of question


ABOUT = ("model", "data", "passages", "run", "budget", "n")  # what distinguishes boards
WIDTH = 80  # terminal columns of the index


def index(boards: Sequence[Board]) -> Group:
    """Return one row per board: the first method, how many do not differ significantly from it, full attention's score.

    Properties that all boards share are above the table. Only methods within the budget are counted.
    """
    rows = []
    for board in boards:
        best = board.entries[0]
        alike = max((len(group) - 1 for group in board.together if best.method in group), default=0)
        ends = [one and one.scores.get(board.by) for one in (best, board.full)]
        scores = [MEASURES[board.by].format_value(each[0] if each else None) for each in ends]
        about = (board.model, board.data, board.passages, board.run, board.budget and f"{board.budget:.0%}", board.n)
        row = dict(zip(ABOUT, ("" if value is None else str(value) for value in about), strict=True))
        row |= {"by": columns.head()[board.by], "best": best.method, "score": scores[0], "full": scores[1]}
        rows.append(row | {"alike": f"{alike} of {len(board.entries)}"})
    shared = [name for name in (*ABOUT, "by") if len({row[name] for row in rows}) == 1]
    names = [name for name in rows[0] if name not in (*shared, "model", "data")]
    widths = {name: max(len(row[name]) for row in (*rows, {name: name})) for name in names}
    short = labels([row["best"] for row in rows], WIDTH - sum(widths.values()) - len(names) + widths["best"])
    widths["best"] = max(len(short[row["best"]]) for row in rows)
    parts: list[RenderableType] = []
    for (model, data), group in groupby(sorted(rows, key=_asked), _asked):
        table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), show_header=not parts)
        for name in names:
            justify: Literal["left", "right"] = "left" if name in ("by", "best") else "right"
            table.add_column(name, justify=justify, no_wrap=True, min_width=widths[name])
        for row in group:
            table.add_row(*(plain(short[row[name]] if name == "best" else row[name]) for name in names))
        parts += [f"[bold]{plain(model)} on {plain(data)}[/]", table]
    head = ", ".join(
        f"{name} {plain(rows[0][name])}" for name in shared if name not in ("model", "data") and rows[0][name]
    )
    meaning = "alike: methods that these questions cannot distinguish from the best; full: full attention's score"
    return Group(*([head] if head else []), *parts, f"[dim]{meaning}[/]", *in_full(short))


def _asked(row: Mapping[str, str]) -> tuple[str, str]:
    return row["model"], row["data"]


def report(board: Board) -> Group:
    """Return a board as tables: quality, methods that do not differ significantly, costs, kinds of question."""
    ranked = f"mean rank (avg) of {columns.head()[board.by]}, {'higher' if HIGHER[board.by] else 'lower'} is better"
    listed = _listed(board)
    short = labels([entry.method for entry in listed])
    parts: list[RenderableType] = [
        f"[bold]{plain(board.title)}[/]: {board.n} questions by {ranked}",
        f"[dim]{plain(board.device)}[/]",
        *([board.budget_note] if board.budget_note else []),
        _table(QUALITY, board, short, paired=True),
        *_groups(board, short),
        "",
        _table(COSTS, board, short),
        *(f"[dim]{plain(line)}[/]" for line in columns.costs(board)),
    ]
    if any(entry.kinds for entry in board.entries):
        parts += ["", *_kinds(board, short)]
    if board.over:
        parts.append(f"over the budget: {plain('; '.join(short[entry.method] for entry in board.over))}")
    parts += in_full(short)
    return Group(*parts)


def _listed(board: Board) -> list[Standing]:
    return [*([board.full] if board.full else []), *board.entries, *board.over]


def _table(asked: Sequence[str], board: Board, short: Mapping[str, str], paired: bool = False) -> Table:
    """Return a table of the known columns; `paired` adds the difference from full attention with its interval."""
    names, by = columns.head(), board.by
    shown = [name for name in columns.measured_columns(board) if name in asked]
    of = "gaps" if board.full and by in board.full.gaps else "scores"
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for name in shown:
        if name == "method":
            table.add_column(SHORT["method"], no_wrap=True)
        else:
            table.add_column(SHORT.get(name, names[name]), justify="right")
    if paired:
        head = f"{names[by]} - full, 95%" if of == "gaps" else f"{names[by]}, 95%"
        table.add_column(head, style="dim", justify="right")
    for entry in _listed(board):
        row = columns.cells(entry)
        interval = [columns.ends(entry, by, of)] if paired else []
        table.add_row(*(Text(short[entry.method] if name == "method" else row[name][1]) for name in shown), *interval)
    return table


def _groups(board: Board, short: Mapping[str, str]) -> list[str]:
    if not board.together:
        return ["all methods differ significantly from each other"]
    return [f"not told apart: {plain('; '.join(short[name] for name in group))}" for group in board.together]


def _kinds(board: Board, short: Mapping[str, str]) -> list[RenderableType]:
    """Return a table of the ranking measure by kind of question."""
    kinds = list(dict.fromkeys(kind for entry in board.entries for kind in entry.kinds))
    found: list[RenderableType] = []
    for begin in range(0, len(kinds), KINDS):
        table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
        table.add_column(columns.head()[board.by], no_wrap=True)
        for kind in kinds[begin : begin + KINDS]:
            table.add_column(plain(kind), justify="right", max_width=13)
        for entry in _listed(board):
            row = [MEASURES[board.by].format_value(entry.kinds.get(kind)) for kind in kinds[begin : begin + KINDS]]
            table.add_row(Text(short[entry.method]), *row)
        found.append(table)
    return found
