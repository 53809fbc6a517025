"""The ranking of any results: methods that answered the same questions, on a board for each charged budget.

boards(results.read("runs/leaderboard"))
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from workbench.core.errors import BadInput, not_allowed
from workbench.experiments.leaderboard import HIGHER, check_by
from workbench.methods.presets import METHODS, name_of
from workbench.metrics.answers import bootstraps, wilson
from workbench.metrics.paired import Ranks, ranks
from workbench.results import METHOD, Results, expanded, read
from workbench.results.summary import RIGHT

ASKED = ["source", "model", "data", "passages", "seed", "training_seed"]  # trials of these were asked the same
TRIAL = [*ASKED, *METHOD]
ANSWERED = ["question", "kind", "device", *HIGHER]  # what else is read of answers
ABOUT = {"passages": "passages", "run": "training_seed"}  # fields of a board, and columns of results
SLACK = 0.005  # by which a charged share may lie over a budget: shares of shipped results are rounded
POLICIES = ("select", "correct", "attend", "sparse")
NUMBERS = ("passages", "seed", "training_seed", "ratio", "chunk")
COSTS = ("charged_share", "rows_charged", "rows_reused", "prompt_tokens", "bytes_loaded", "preprocess_ms")
Ends = tuple[float, float, float]  # a mean and its 95% interval


@dataclass(frozen=True)
class Standing:
    """A method on a board.

    rank           its place, from 1; None for full attention and for a method over the budget
    average_rank   over the questions
    scores         of each measure (mean, low, high), with its 95% interval over questions
    gaps           of each measure the mean difference from full attention's, paired by question, with its interval
    kinds          of each kind of question the mean of the measure that ranks
    charged        share of the prompt's tokens that a request computes, selection included; None: not known
    ttft_ms        median time to first token on this device
    storage_mb     cached keys and values of 1,000 tokens of passages
    preprocess_ms  per token of a passage, to encode it beforehand
    front          no method of the board is better at a smaller or equal charged share
    """

    method: str
    fields: dict[str, Any]
    n: int
    rank: int | None = None
    average_rank: float | None = None
    scores: dict[str, Ends] = field(default_factory=dict)
    gaps: dict[str, Ends] = field(default_factory=dict)
    kinds: dict[str, float] = field(default_factory=dict)
    charged: float | None = None
    ttft_ms: float | None = None
    storage_mb: float | None = None
    preprocess_ms: float | None = None
    front: bool = False


Scores = dict[str, np.ndarray]  # of a method: every question's number, kind and measures
Entry = tuple[Standing, Scores]


@dataclass(frozen=True)
class Board:
    """Methods on the same questions, ranked; `full` is full attention, `over` are methods over the budget.

    `together` are groups of methods, by name, that these questions do not tell apart; `unmet` is the largest budget
    asked for, where too few methods keep it, so that every method is ranked at what it charges. `run` is the model's
    training seed.
    """

    source: str
    model: str
    data: str
    by: str
    budget: float | None
    device: str
    n: int
    entries: tuple[Standing, ...]
    full: Standing | None
    over: tuple[Standing, ...]
    ranks: Ranks
    together: tuple[tuple[str, ...], ...]
    unmet: float | None = None
    passages: int | None = None
    run: int | None = None

    def __repr__(self) -> str:
        best = f", best {self.entries[0].method!r}" if self.entries else ""
        return f"Board({self.title}: {len(self.entries)} methods by {self.by}{best})"

    @property
    def title(self) -> str:
        """Say which model, data and budget."""
        within = "" if self.budget is None else f", at most {self.budget:.0%} charged"
        return f"{self.model} on {self.data}{within}"

    @property
    def unkept(self) -> str:
        """Say that the budget could not be kept, and how methods are ranked instead; "" where it could."""
        least = min((e.charged for e in self.entries if e.charged), default=None)
        if self.unmet is None or least is None:
            return ""
        few = f"no two methods keep a budget of {self.unmet:.0%} on these prompts (the cheapest computes {least:.0%})"
        return f"{few}: all are ranked, each at what it charges"

    @property
    def table(self) -> pd.DataFrame:
        """Return a row a method, full attention first: rank, scores with their 95% intervals, and costs."""
        rows = []
        for one in filter(None, (self.full, *self.entries, *self.over)):
            row: dict[str, Any] = {"method": one.method, "rank": one.rank}
            for name, (value, low, high) in one.scores.items():
                row |= {name: value, f"{name}_low": low, f"{name}_high": high}
            rows.append(row | {name: getattr(one, name) for name in ("charged", "ttft_ms", "storage_mb", "front", "n")})
        return pd.DataFrame(rows)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        about = asdict(self) | {"title": self.title}
        tests = about.pop("ranks") | {"p": [[*pair, p] for pair, p in self.ranks.p.items()]}
        return about | {"ranks": tests}


def boards(
    found: Results | str | Path,
    budgets: Sequence[float] = (),
    by: str = "",
    model: str = "",
    data: str = "",
    least: int = 2,
    whole: int | None = None,
) -> list[Board]:
    """Return a board for each model and data set of results, or of a place that `results.read` takes, and each budget.

    budgets      of a method at several ratios, the largest charged share within a budget stands on its board. Where
                 fewer methods than `least` keep any, one board holds every trial, with `unmet`. Without, those that
                 the results were measured for; where there are none, one board holds every trial
    by           the measure that ranks; "" takes the first of `HIGHER` that all methods have
    model, data  only these
    least        fewer methods make no board
    whole        of more boards than these, scores are means alone: their intervals take time. None: of any number

    Raises BadInput for an unknown measure, a model or data that no results are of, and for results without a board.
    """
    check_by(by)
    found = found if isinstance(found, Results) else read(found)
    answers = _own(found.coded("answers", "trial", [*TRIAL, *ANSWERED]), model, data)
    costs = _costs(found)
    asked_alike = answers.groupby(ASKED, sort=False, dropna=False, observed=True)
    means = whole is not None and asked_alike.ngroups > whole
    made = []
    for _, asked in asked_alike:
        entries = _entries(asked, costs)
        wanted = budgets or sorted({e.fields["charged"] for e, _ in entries if e.fields.get("charged")}) or (None,)
        ranked = [board for budget in wanted if (board := _board(asked, entries, budget, by, least, means))]
        if not ranked and budgets and (board := _board(asked, entries, None, by, least, means)):
            ranked = [replace(board, unmet=max(budgets))]
        made += ranked
    if not made:
        raise BadInput(f"{' and '.join(found.sources)}: no {least} methods of one model were asked the same questions")
    return made if not means or len(made) > (whole or 0) else boards(found, budgets, by, model, data, least)


def _own(answers: pd.DataFrame, model: str, data: str) -> pd.DataFrame:
    for name, value in (("model", model), ("data", data)):
        if value and len(answers) and value not in set(answers[name]):
            raise not_allowed(name, value, sorted(set(answers[name])))
        answers = answers[answers[name] == value] if value else answers
    answers = _filled(answers[[*TRIAL, *ANSWERED]])
    return answers.assign(trial=answers.groupby(TRIAL, sort=False, observed=True).ngroup())


def _filled(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows without gaps in the columns of TRIAL: -1 for a number, "" for a policy that is none."""
    # Older results lack what is "none" today.
    texts = {name: rows[name].astype(object).replace("none", "") for name in POLICIES}
    return rows.assign(**texts, **{name: rows[name].fillna(-1) for name in NUMBERS})


def _costs(found: Results) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Return of each trial what a request costs, as far as it is known, and the budget that its trial was asked for."""
    counts, timed = (
        found.coded(table, "trial", [*TRIAL, *names])
        for table, names in (("counts", ("measure", "kind", "value", "setting")), ("timings", ("ms",)))
    )
    counts = counts[counts.measure.isin(COSTS) & counts.kind.isin(["", "all"])]
    counts, timed = (
        _filled(rows.astype(dict.fromkeys(rows.select_dtypes("category"), str))) for rows in (counts, timed)
    )
    counts = expanded(counts, "charged")
    known = counts.pivot_table("value", TRIAL, "measure", aggfunc="last").reindex(columns=COSTS)
    known = known.join(counts.groupby(TRIAL).charged.last())
    known = known.join(timed.groupby(TRIAL).ms.last().rename("ttft_ms"), how="outer")
    full = known.rows_charged[known.index.get_level_values("mode") == "full"].groupby(ASKED).last()
    whole = full.reindex(known.index.droplevel(list(METHOD))).to_numpy()  # full attention computes all tokens
    known["charged_share"] = known.charged_share.fillna(
        known.rows_charged / known.prompt_tokens.fillna(pd.Series(whole, known.index))
    )
    trials = known.to_dict("index").items()
    return {trial: {name: value for name, value in row.items() if pd.notna(value)} for trial, row in trials}


def _entries(asked: pd.DataFrame, costs: dict[tuple[Any, ...], dict[str, Any]]) -> list[Entry]:
    """Return the methods that were asked, each with its answers."""
    # A later row that tells less of a question does not take the place of one that tells more.
    known = asked.sort_values("kl", key=pd.notna, kind="stable")
    known = known.assign(**{name: pd.factorize(known[name])[0] for name in ("trial", "question")})
    known = known.drop_duplicates(["trial", "question"], keep="last").sort_values("trial", kind="stable")
    columns = {name: known[name].to_numpy() for name in ("question", "kind", *HIGHER)}
    begin = np.flatnonzero(np.diff(known.trial, prepend=-1))
    parts = {name: np.split(column, begin[1:]) for name, column in columns.items()}
    groups = [
        (key, {name: part[at] for name, part in parts.items()})
        for at, key in enumerate(known[TRIAL].iloc[begin].itertuples(index=False, name=None))
    ]
    encoded: dict[str, float] = {}  # by preprocessing: methods that share one find its blocks in place
    for key, _ in groups:
        if (ms := costs.get(key, {}).get("preprocess_ms")) is not None:
            prepare = key[TRIAL.index("prepare")]
            encoded[prepare] = max(ms, encoded.get(prepare, 0.0))
    made = []
    for key, rows in groups:
        cost, first = costs.get(key, {}), dict(zip(TRIAL, key, strict=True))
        fields = {name: first[name] for name in METHOD[1:] if first[name] not in ("", -1)}
        fields |= {"charged": cost["charged"]} if "charged" in cost else {}
        full = first["mode"] == "full"
        entry = Standing(
            first["method"] if first["method"] in METHODS else name_of(fields) or first["method"],
            fields,
            len(rows["question"]),
            charged=1.0 if full else cost.get("charged_share"),
            ttft_ms=cost.get("ttft_ms"),
            storage_mb=cost["bytes_loaded"] / cost["rows_reused"] / 1e3 if cost.get("rows_reused") else None,
            preprocess_ms=None if full else encoded.get(first["prepare"]),
        )
        made.append((entry, rows))
    return made


def _board(
    asked: pd.DataFrame, entries: Sequence[Entry], budget: float | None, by: str, least: int, means: bool
) -> Board | None:
    """Return the board of a budget; None where fewer than `least` methods share a measure."""
    fulls = [(e, rows) for e, rows in entries if _is_full(e)]
    rest = [(e, rows) for e, rows in entries if not _is_full(e)]
    chosen, over = _within(rest, budget)
    measure = by or next((name for name in HIGHER if all(_known(rows[name]).any() for _, rows in chosen)), "")
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
    made = [_whole(one, measure, *ends) for one, ends in zip(listed, _ends(listed, full, means), strict=True)]
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
        **{name: int(number) for name, at in ABOUT.items() if (number := asked[at].iloc[0]) >= 0},
    )


def _is_full(entry: Standing) -> bool:
    return entry.fields.get("mode") == "full" and "sparse" not in entry.fields


def _known(values: np.ndarray) -> np.ndarray:
    return ~np.isnan(values)


def _of(rows: Scores, name: str, questions: int) -> np.ndarray:
    """Return a measure of every question [questions], nan of those that were not asked."""
    found = np.full(questions, np.nan)
    found[rows["question"]] = rows[name]
    return found


def _within(entries: Sequence[Entry], budget: float | None) -> tuple[list[Entry], list[Entry]]:
    """Return of each method the trial of the largest charged share within the budget, and those that have none."""
    if budget is None:
        return list(entries), []
    best: dict[tuple[Any, ...], Entry] = {}
    least: dict[tuple[Any, ...], Entry] = {}
    for one in (one for one in entries if one[0].charged is not None):
        key = tuple(str(one[0].fields.get(name)) for name in METHOD[1:] if name != "ratio")
        share = one[0].charged or 0.0
        if share <= budget + SLACK and share > (best[key][0].charged or 0.0 if key in best else -1):
            best[key] = one
        if key not in least or share < (least[key][0].charged or 0.0):
            least[key] = one
    return list(best.values()), [one for key, one in least.items() if key not in best]


def _names(entries: Sequence[Standing]) -> list[str]:
    """Return names that tell methods apart: with the ratio where one stands several times."""
    names = [entry.method for entry in entries]
    said = [
        f"{e.method} at {e.fields['ratio']:.0%}"
        if names.count(e.method) > 1 and "ratio" in e.fields and {"select", "correct"} & e.fields.keys()
        else e.method
        for e in entries
    ]
    return [f"{name} ({said[:at].count(name) + 1})" if said.count(name) > 1 else name for at, name in enumerate(said)]


def _ends(listed: Sequence[Entry], full: Entry | None, means: bool) -> list[tuple[dict[str, Ends], dict[str, Ends]]]:
    """Return of every method its scores and its differences from full attention, by measure; or `means` alone."""
    samples: dict[tuple[int, bool, str], np.ndarray] = {}  # of a method, whether a difference, of a measure
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
    found: list[tuple[dict[str, Ends], dict[str, Ends]]] = [({}, {}) for _ in listed]
    for key, values in samples.items():
        at, gap, name = key
        found[at][gap][name] = float(values.mean()), *(ends.get(key) or wilson(values.sum(), len(values)))
    return found


def _whole(one: Entry, by: str, scores: dict[str, Ends], gaps: dict[str, Ends]) -> Standing:
    """Return the entry with its scores, its differences from full attention and its kinds of question."""
    entry, rows = one
    of_kind = {str(kind): rows[by][(rows["kind"] == kind) & _known(rows[by])] for kind in sorted(set(rows["kind"]))}
    kinds = {kind: float(of.mean()) if len(of) else math.nan for kind, of in of_kind.items() if kind}
    return replace(entry, scores=scores, gaps=gaps, kinds=kinds if len(kinds) > 1 else {})


def _front(charged: Sequence[float | None], quality: Sequence[float], higher: bool) -> set[int]:
    """Return which methods no other beats at a smaller or equal charged share."""
    found, best = set(), None
    losses = [-value if higher else value for value in quality]
    known = [(share, losses[at], at) for at, share in enumerate(charged) if share is not None]
    for _, loss, at in sorted(known):
        if best is None or loss < best:
            found.add(at)
            best = loss
    return found
