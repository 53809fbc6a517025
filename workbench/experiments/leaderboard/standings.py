"""Methods with the results of their trials: answers to the same questions, and costs of a request."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from workbench.core.errors import not_allowed
from workbench.experiments.leaderboard import HIGHER
from workbench.methods.presets import ALIKE, METHODS, name_of
from workbench.results import METHOD, Results, expand_settings

ASKED = ["source", "model", "data", "passages", "seed", "training_seed"]  # equal for trials of the same questions
TRIAL = [*ASKED, *METHOD]
ANSWERED = ["question", "kind", "device", *HIGHER]  # further columns read of answers
POLICIES = ("select", "correct", "attend", "sparse")
NUMBERS = ("passages", "seed", "training_seed", "ratio", "chunk")
COSTS = ("charged_share", "rows_charged", "rows_reused", "prompt_tokens", "bytes_loaded", "preprocess_ms")
Ends = tuple[float, float, float]  # a mean and its 95% interval


@dataclass(frozen=True)
class Standing:
    """A method on a board.

    rank           its place, from 1; None for full attention and for a method over the budget
    average_rank   mean rank over the questions
    scores         {measure: (mean, low, high)} with 95% intervals over questions
    gaps           {measure: (mean, low, high)} of the paired difference from full attention
    moved          {measure: (how many questions differ from full attention, of how many)}
    kinds          {kind of question: mean of the measure that ranks}
    charged        share of the prompt's tokens that a request computes, selection included; None: unknown
    ttft_ms        median time to first token on this device
    speedup        full attention's time to first token over the method's, timed separately (`Board.timed`)
    storage_mb     MB of cached keys and values for 1,000 tokens of passages
    preprocess_ms  milliseconds to encode a passage beforehand, per token
    front          whether it is on the Pareto front: no other method is better at an equal or smaller charged share
    """

    method: str
    fields: dict[str, Any]
    n: int
    rank: int | None = None
    average_rank: float | None = None
    scores: dict[str, Ends] = field(default_factory=dict)
    gaps: dict[str, Ends] = field(default_factory=dict)
    moved: dict[str, tuple[int, int]] = field(default_factory=dict)
    kinds: dict[str, float] = field(default_factory=dict)
    charged: float | None = None
    ttft_ms: float | None = None
    speedup: float | None = None
    storage_mb: float | None = None
    preprocess_ms: float | None = None
    front: bool = False


Scores = dict[str, np.ndarray]  # a method's columns: question number, kind and measures
Entry = tuple[Standing, Scores]


def answers_of(answers: pd.DataFrame, model: str, data: str) -> pd.DataFrame:
    """Return the answers of a model and data set, with the number of their trial; "" of all."""
    for name, value in (("model", model), ("data", data)):
        if value and len(answers) and value not in set(answers[name]):
            raise not_allowed(name, value, sorted(set(answers[name])))
        answers = answers[answers[name] == value] if value else answers
    answers = _filled(answers[[*TRIAL, *ANSWERED]])
    return answers.assign(trial=answers.groupby(TRIAL, sort=False, observed=True).ngroup())


def _filled(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows without gaps in the columns of TRIAL: -1 for a number, "" for a policy that is none."""
    # Older results lack fields that are "none" today.
    texts = {name: rows[name].astype(object).replace("none", "") for name in POLICIES}
    return rows.assign(**texts, **{name: rows[name].fillna(-1) for name in NUMBERS})


def costs_of(found: Results) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Return of each trial what a request costs, as far as it is known, and the budget that its trial was asked for."""
    counts, timed = (
        found.coded(table, "trial", [*TRIAL, *names])
        for table, names in (("counts", ("measure", "kind", "value", "setting")), ("timings", ("ms",)))
    )
    counts = counts[counts.measure.isin(COSTS) & counts.kind.isin(["", "all"])]
    counts, timed = (
        _filled(rows.astype(dict.fromkeys(rows.select_dtypes("category"), str))) for rows in (counts, timed)
    )
    counts = expand_settings(counts, "charged")
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


def entries_of(asked: pd.DataFrame, costs: dict[tuple[Any, ...], dict[str, Any]]) -> list[Entry]:
    """Return the methods that were asked, each with its answers."""
    # A later row of a question does not replace an earlier one with more measures.
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
    # By preparation: a later method with the same one finds its blocks in the store.
    encoded: dict[tuple[str, str], float] = {}
    for key, _ in groups:
        if (ms := costs.get(key, {}).get("preprocess_ms")) is not None:
            prepared = _prepared(dict(zip(TRIAL, key, strict=True)))
            encoded[prepared] = max(ms, encoded.get(prepared, 0.0))
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
            preprocess_ms=None if full else encoded.get(_prepared(first)),
        )
        made.append((entry, rows))
    return made


def _prepared(trial: dict[str, Any]) -> tuple[str, str]:
    """Return what tells how passages are encoded beforehand: Superposition, a mode, has no preparation."""
    return trial["mode"], ALIKE.get(trial["prepare"], trial["prepare"])
