"""Rank the methods of any results, as `boards(results.read("runs/leaderboard"))`.

Methods that answered the same questions are on one board for each charged budget.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from workbench.core.errors import BadInput
from workbench.experiments.leaderboard import HIGHER, check_by
from workbench.experiments.leaderboard.board import Board
from workbench.experiments.leaderboard.standings import (
    ANSWERED,
    ASKED,
    TRIAL,
    Entry,
    Scores,
    Standing,
    answers_of,
    costs_of,
    entries_of,
)
from workbench.experiments.leaderboard.timed_apart import TimedApart, timed_apart
from workbench.methods.presets import METHODS
from workbench.metrics.answers import bootstraps, wilson
from workbench.metrics.paired import ranks
from workbench.results import METHOD, Results, read
from workbench.results.summary import RIGHT

ENOUGH = 0.9  # share of the methods that have the measure which ranks; those without are not ranked
SLACK = 0.005  # a share that rounds to the budget's whole percent keeps it, as ratios may be solved on few prompts
OWN = ", own number"  # behind the name of a method that was also measured at a ratio


def boards(
    found: Results | str | Path,
    budgets: Sequence[float] = (),
    by: str = "",
    model: str = "",
    data: str = "",
    least: int = 2,
    whole: int | None = None,
    published: bool = False,
) -> list[Board]:
    """Return a board for each budget, model and data set of results, or of a place that `results.read` takes.

    budgets      charged shares; of a method at several ratios, the largest within the budget is on the board. If fewer
                 methods than `least` keep any budget, one board has all trials, with `unmet`. (): the budgets that the
                 results were measured for; without such, one board has all trials
    by           the measure that ranks; "": the first of `HIGHER` that nine in ten methods have
    model, data  only these; "": all
    least        fewest methods of a board
    published    only methods that have a name, as `workbench leaderboard` measures them: no variants of them
    whole        with more boards than this, scores have no intervals, which take time; None: any number has them

    Raises BadInput for an unknown measure, for a model or data without results, and for results without a board.
    """
    check_by(by)
    found = found if isinstance(found, Results) else read(found)
    answers = answers_of(found.coded("answers", "trial", [*TRIAL, *ANSWERED]), model, data)
    costs = costs_of(found)
    asked_alike = answers.groupby(ASKED, sort=False, dropna=False, observed=True)
    means = whole is not None and asked_alike.ngroups > whole
    made = []
    for _, asked in asked_alike:
        entries = entries_of(asked, costs)
        if published:
            entries = [(e, rows) for e, rows in entries if e.method in METHODS]
        wanted = budgets or sorted({e.fields["charged"] for e, _ in entries if e.fields.get("charged")}) or (None,)
        ranked = [board for budget in wanted if (board := _board(asked, entries, budget, by, least, means))]
        if not ranked and budgets and (board := _board(asked, entries, None, by, least, means)):
            ranked = [replace(board, unmet=max(budgets))]
        made += ranked
    if not made:
        raise BadInput(f"{' and '.join(found.sources)}: no {least} methods of one model were asked the same questions")
    if means and len(made) <= (whole or 0):
        return boards(found, budgets, by, model, data, least, published=published)
    apart = timed_apart(found)
    return [_beside(board, apart[board.source]) if board.source in apart else board for board in made]


def _beside(board: Board, timed: TimedApart) -> Board:
    """Return a board with the speedups of methods that were timed separately."""

    def beside(entry: Standing) -> Standing:
        return replace(entry, speedup=timed.speedup(entry.method, entry.charged))

    entries, full = tuple(map(beside, board.entries)), board.full and beside(board.full)
    known = any(entry.speedup for entry in entries)
    return replace(board, entries=entries, full=full, timed=timed.about) if known else board


def _board(
    asked: pd.DataFrame, entries: Sequence[Entry], budget: float | None, by: str, least: int, means: bool
) -> Board | None:
    """Return the board of a budget; None if fewer than `least` methods share a measure."""
    fulls = [(e, rows) for e, rows in entries if _is_full(e)]
    rest = [(e, rows) for e, rows in entries if not _is_full(e)]
    chosen, over = _within(rest, budget)
    having = {name: sum(bool(_known(rows[name]).any()) for _, rows in chosen) for name in HIGHER}
    measure = by or next((name for name in HIGHER if having[name] and having[name] >= ENOUGH * len(chosen)), "")
    without = [e.method for e, rows in chosen if measure and not _known(rows[measure]).any()]
    chosen = [(e, rows) for e, rows in chosen if measure and _known(rows[measure]).any()]
    if len(chosen) < max(2, least):
        return None
    full = max(fulls, key=lambda one: _known(one[1][measure]).sum(), default=None)
    questions = asked.question.nunique()
    table = np.stack([_of(rows, measure, questions) for _, rows in chosen], axis=1)
    table = table[_known(table).all(1)]
    if not len(table):
        return None
    ranked = ranks(table, HIGHER[measure])
    order = sorted(range(len(chosen)), key=lambda at: ranked.average[at])
    names = _names([e for e, _ in chosen])
    front = _front([e.charged for e, _ in chosen], table.mean(0).tolist(), HIGHER[measure])
    listed = [*(chosen[at] for at in order), *over, *([] if full is None else [full])]
    made = [_whole(one, measure, ends) for one, ends in zip(listed, _ends(listed, full, means), strict=True)]
    for place, at in enumerate(order):
        made[place] = replace(
            made[place], method=names[at], rank=place + 1, average_rank=ranked.average[at], front=at in front
        )
    devices = filter(None, asked.device.unique())
    return Board(
        str(asked.source.iloc[0]),
        str(asked.model.iloc[0]),
        str(asked.data.iloc[0]),
        measure,
        budget,
        " and ".join(devices),
        len(table),
        tuple(made[: len(order)]),
        None if full is None else made[-1],
        tuple(made[len(order) : len(order) + len(over)]),
        ranked,
        tuple(tuple(names[at] for at in group) for group in ranked.together),
        passages=_number(asked.passages),
        run=_number(asked.training_seed),
        unmeasured=tuple(dict.fromkeys(without)),
    )


def _number(column: pd.Series) -> int | None:
    """Return the number that all rows share; None if they have none."""
    return int(column.iloc[0]) if column.iloc[0] >= 0 else None


def _is_full(entry: Standing) -> bool:
    return entry.fields.get("mode") == "full" and "sparse" not in entry.fields


def _known(values: np.ndarray) -> np.ndarray:
    return ~np.isnan(values)


def _of(rows: Scores, name: str, questions: int) -> np.ndarray:
    """Return a measure of every question [questions]; nan if it was not asked."""
    found = np.full(questions, np.nan)
    found[rows["question"]] = rows[name]
    return found


def _within(entries: Sequence[Entry], budget: float | None) -> tuple[list[Entry], list[Entry]]:
    """Return each method's trial of the largest charged share within the budget, and what is over the budget.

    That is the cheapest trial of a method without one, and a trial at the method's own number of tokens.
    """
    if budget is None:
        return list(entries), []
    best: dict[tuple[Any, ...], Entry] = {}
    least: dict[tuple[tuple[str, ...], bool], Entry] = {}
    for one in (one for one in entries if one[0].charged is not None):
        fields, share = one[0].fields, one[0].charged or 0.0
        key = tuple(str(fields.get(name)) for name in METHOD[1:] if name != "ratio")
        own = "select" in fields and "ratio" not in fields
        if share <= budget + SLACK and share > (best[key][0].charged or 0.0 if key in best else -1):
            best[key] = one
        if (key, own) not in least or share < (least[key, own][0].charged or 0.0):
            least[key, own] = one
    over = []
    for (key, own), (entry, rows) in least.items():
        if key not in best or (own and (entry.charged or 0.0) > budget + SLACK):
            name = f"{entry.method}{OWN}" if own and (key, False) in least else entry.method
            over.append((replace(entry, method=name), rows))
    return list(best.values()), over


def _names(entries: Sequence[Standing]) -> list[str]:
    """Return unique names of methods: with the ratio if a method occurs several times."""
    names = [entry.method for entry in entries]
    said = [
        f"{e.method} at {e.fields['ratio']:.0%}"
        if names.count(e.method) > 1 and "ratio" in e.fields and {"select", "correct"} & e.fields.keys()
        else e.method
        for e in entries
    ]
    return [f"{name} ({said[:at].count(name) + 1})" if said.count(name) > 1 else name for at, name in enumerate(said)]


def _ends(listed: Sequence[Entry], full: Entry | None, means: bool) -> list[dict[str, dict[str, Any]]]:
    """Return the fields `scores`, `gaps` and `moved` of every method, by measure; `means`: without intervals."""
    samples: dict[tuple[int, bool, str], np.ndarray] = {}  # key: (method, whether a difference, measure)
    questions = 1 + max(rows["question"].max() for _, rows in listed)
    for name in HIGHER:
        base = None if full is None else _of(full[1], name, questions)
        for at, (_, rows) in enumerate(listed):
            samples[at, False, name] = rows[name]
            if base is not None:
                samples[at, True, name] = rows[name] - base[rows["question"]]
    samples = {key: each[_known(each)] for key, each in samples.items() if _known(each).any()}
    resampled = [key for key in samples if not means and (key[1] or key[2] not in RIGHT)]
    ends = dict(zip(resampled, bootstraps([samples[key] for key in resampled]), strict=True))
    ends |= dict.fromkeys(samples if means else (), (math.nan, math.nan))
    found: list[dict[str, dict[str, Any]]] = [{"scores": {}, "gaps": {}, "moved": {}} for _ in listed]
    for key, values in samples.items():
        at, gap, name = key
        one = float(values.mean()), *(ends.get(key) or wilson(values.sum(), len(values)))
        found[at]["gaps" if gap else "scores"][name] = one
        if gap:
            found[at]["moved"][name] = int(np.count_nonzero(values)), len(values)
    return found


def _whole(one: Entry, by: str, ends: dict[str, dict[str, Any]]) -> Standing:
    """Return the entry with the fields of `_ends`, and scores by kind of question."""
    entry, rows = one
    of_kind = {str(kind): rows[by][(rows["kind"] == kind) & _known(rows[by])] for kind in sorted(set(rows["kind"]))}
    kinds = {kind: float(of.mean()) if len(of) else math.nan for kind, of in of_kind.items() if kind}
    return replace(
        entry, scores=ends["scores"], gaps=ends["gaps"], moved=ends["moved"], kinds=kinds if len(kinds) > 1 else {}
    )


def _front(charged: Sequence[float | None], quality: Sequence[float], higher: bool) -> set[int]:
    """Return the methods that no other one beats at a smaller or equal charged share."""
    found, best = set(), None
    losses = [-value if higher else value for value in quality]
    known = [(share, losses[at], at) for at, share in enumerate(charged) if share is not None]
    for _, loss, at in sorted(known):
        if best is None or loss < best:
            found.add(at)
            best = loss
    return found
