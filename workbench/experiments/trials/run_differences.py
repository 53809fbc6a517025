"""Compare runs: paired differences of scores, ratios of costs, and changed parameters and versions."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from workbench.core.errors import BadInput
from workbench.experiments.trials.base_runs import find_bases, is_full, shared_fields
from workbench.experiments.trials.record import Record
from workbench.experiments.trials.runs import Run, differing_values, distinct
from workbench.metrics import latency
from workbench.metrics.paired import difference, mcnemar

SCORES = ("em", "f1", "contains", "nll", "kl", "kl_first", "agree", "agree_first")
RIGHT = ("em", "contains", "agree_first")  # scores of 0 or 1 per question, compared by McNemar's test
BESIDE_FULL = ("kl", "kl_first", "agree", "agree_first")  # measured against full attention of the run's own model
COSTS = {
    "ttft_p50": "time to first token, ms",
    "rows_computed": "tokens computed",
    "flops": "operations",
    "bytes": "bytes moved",
    "bytes_loaded": "bytes from the store",
}


@dataclass(frozen=True)
class RunDifference:
    """Difference of `run` from `base` in one score, on `n` questions that both have answered.

    `low` and `high` are the ends of a paired bootstrap 95% interval, `p` is McNemar's p-value for scores of 0 or 1.
    They are None if the runs cannot be paired by question, for the reason `why`.
    """

    run: str
    base: str
    score: str
    one: float
    other: float
    difference: float
    n: int = 0
    low: float | None = None
    high: float | None = None
    p: float | None = None
    why: str = ""
    moved: int = 0  #: number of questions on which the runs differ


@dataclass(frozen=True)
class RunComparison:
    """Runs, each beside its base: one of them, or the full-attention run of the same model, data and seed."""

    runs: tuple[Run, ...]
    base_of: Mapping[str, Run]  #: by the run's name; a base is its own
    differences: tuple[RunDifference, ...]
    parameters: dict[str, list[Any]]  #: differing parameters, with one value per run
    versions: dict[str, list[Any]]

    @property
    def bases(self) -> list[Run]:
        """Return the runs that others are compared with."""
        return [run for run in self.runs if self.base_of[run.name] is run]

    @property
    def others(self) -> list[Run]:
        """Return the runs that are compared with a base."""
        return [run for run in self.runs if self.base_of[run.name] is not run]

    @property
    def base_name(self) -> str:
        """Name the base, or say which of several each run is compared with."""
        bases = self.bases
        return bases[0].name if len(bases) == 1 else f"full attention of the same {shared_fields(bases)}"

    def costs(self) -> list[dict[str, Any]]:
        """Return a row a run: its costs, {cost}_ratio to those of the base, and the spread of its times.

        `ttft_n` is how many requests were timed, of the run or of the base: the smaller number. `ttft_low` and
        `ttft_high` are the ends of how many times as fast the first token is.
        """
        rows = []
        for run in self.runs:
            base = self.base_of[run.name]
            row: dict[str, Any] = {"run": run.name, "base": base.name}
            for name in COSTS:
                value, level = run.scores.get(name), base.scores.get(name)
                row |= {name: value, f"{name}_ratio": value / level if value is not None and level else None}
            timed = [n for each in (run, base) if (n := each.scores.get("ttft_n")) is not None]
            row |= {name: run.scores.get(f"ttft_{name}") for name in ("p5", "p95", "least", "most")}
            rows.append(row | {"ttft_n": min(timed, default=None)} | self._speedup(run, base))
        return rows

    def _speedup(self, run: Run, base: Run) -> dict[str, float | None]:
        """Return the interval of a run's speedup over the base to the first token; None without quantiles."""
        if run.record is None or base.record is None:
            return {"ttft_low": None, "ttft_high": None}
        _, low, high = latency.ratio(*(latency.ttft_record(each.record.ttft_s) for each in (base, run) if each.record))
        return {"ttft_low": low, "ttft_high": high}

    @property
    def model_and_data(self) -> str:
        """Say model and data, where all runs share them."""
        shared = [str(self.runs[0].parameters[key]) for key in ("model", "data") if self.runs[0].parameters.get(key)]
        named = [Path(text).name for text in shared]
        return "" if {"model", "data"} & set(self.parameters) or len(named) < 2 else f"{named[0]} on {named[1]}"

    def answers(self, most: int = 12) -> list[tuple[str, ...]]:
        """Return (question, expected, the base's answer, each other run's) where they differ, at most so many.

        A run with another base has "–".
        """
        said = [{row["id"]: str(row.get("answer", "")) for row in run.answers} for run in self.others]
        found = []
        for base in self.bases:
            beside = [self.base_of[run.name] is base for run in self.others]
            for row in base.answers:
                each = [by_id.get(row["id"], "–") if ours else "–" for by_id, ours in zip(said, beside, strict=True)]
                answer = str(row.get("answer", ""))
                if {text for text, ours in zip(each, beside, strict=True) if ours} - {answer}:
                    found.append((str(row.get("asked") or row["id"]), str(row.get("expected") or "–"), answer, *each))
        return found[:most]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values: a row a run, a row a difference, and what changed."""
        return {
            "base": self.bases[0].name if len(self.bases) == 1 else None,
            "runs": [{"run": run.name, "source": run.source, **run.scores} for run in self.runs],
            "differences": [asdict(each) for each in self.differences],
            "costs": self.costs(),
            "parameters": self.parameters,
            "versions": self.versions,
        }


def compared(runs: Sequence[Run], base: str | None = None, scores: Sequence[str] = (), seed: int = 0) -> RunComparison:
    """Compare runs with one of them, `base` by name or number from 1, or each with its own (`find_bases`).

    `scores` as they are called in records; without them, those of SCORES that all runs have, or all common numbers of
    notebooks. Between two runs under full attention those of BESIDE_FULL are left out: each is its own reference, so
    they are 0 (or 100%) whatever the models are.

    Raises BadInput for fewer than two runs, as `find_bases`, and for a score that a run lacks.
    """
    named, bases, common = check_asked(runs, base, scores)
    trivial = BESIDE_FULL if all(map(is_full, named)) else ()
    wanted = list(scores) or [name for name in SCORES if name in common and name not in trivial]
    if not wanted and all(run.record is None for run in named):
        wanted = [name for name in common if not name.endswith(("_low", "_high"))]
    if not wanted:
        raise BadInput("the runs have no score in common")
    pairs = [(run, bases[run.name], score) for run in named if run is not bases[run.name] for score in wanted]
    told = [(run, level, score) for run, level, score in pairs if not _own_reference(run, level, score)]
    found = tuple(difference_of(run, level, score, seed) for run, level, score in told)
    parameters, versions = (
        differing_values([run.parameters for run in named]),
        differing_values([run.versions for run in named]),
    )
    return RunComparison(tuple(named), bases, found, parameters, versions)


def check_asked(
    runs: Sequence[Run], base: str | None, scores: Sequence[str]
) -> tuple[list[Run], dict[str, Run], list[str]]:
    """Return the runs by their names, the base of each, and the scores that all have; BadInput as `compared`."""
    if len(runs) < 2:
        raise BadInput(f"{len(runs)} run: at least two are needed to compare")
    named = distinct(runs)
    common = [name for name in named[0].scores if all(name in run.scores for run in named)]
    if missing := [name for name in scores if name not in common]:
        known = [name for name in SCORES if name in common] or common
        raise BadInput(f"not every run has a score {missing[0]!r}: they share {', '.join(known) or 'none'}")
    if (own := [name for name in scores if name in BESIDE_FULL]) and all(map(is_full, named)):
        raise BadInput(f"score {own[0]!r} is beside full attention of a run's own model: all of these runs are that")
    return named, find_bases(named, base), common


def planned_run(name: str, parameters: Mapping[str, Any]) -> Run:
    """Return a trial that has not run yet as a run, for `check_asked`: all scores are 0."""
    numbers = (*SCORES, *COSTS, *(field.name for field in fields(Record)))
    parameters = {key: value for key, value in parameters.items() if key != "device"}  # its name is known after the run
    return Run(name, "", parameters, dict.fromkeys(numbers, 0.0))


def difference_of(run: Run, base: Run, score: str, seed: int = 0) -> RunDifference:
    """Return how much more a run scores than another, paired by question where both have answered the same."""
    first, second, why = _paired(run, base, score)
    one, other = run.scores[score], base.scores[score]
    about: dict[str, Any] = {"run": run.name, "base": base.name, "score": score}
    if why:
        return RunDifference(**about, one=one, other=other, difference=one - other, why=why)
    gap = difference(first, second, seed)
    p = mcnemar(first, second).p if score in RIGHT else None
    means: dict[str, Any] = {"one": sum(first) / len(first), "other": sum(second) / len(second)}
    return RunDifference(
        **about, **means, difference=gap.mean, n=gap.n, low=gap.low, high=gap.high, p=p, moved=gap.moved
    )


def _own_reference(run: Run, base: Run, score: str) -> bool:
    return score in BESIDE_FULL and is_full(run) and is_full(base)


def _paired(run: Run, base: Run, score: str) -> tuple[list[float], list[float], str]:
    """Return both runs' scores of their common questions, or why they cannot be paired."""
    for each in (run, base):
        if not each.answers:
            return [], [], f"of {'both' if not (run.answers or base.answers) else each.name} only sums were kept"
    texts = all("expected" in row for each in (run, base) for row in each.answers)
    if not texts and run.questions_key != base.questions_key:
        return [], [], "other questions were asked"
    theirs = {row["id"]: row for row in base.answers}
    pairs = []
    for row in run.answers:
        other = theirs.get(row["id"])
        if other is None or (texts and row["expected"] != other["expected"]):
            continue
        ours, base_score = row.get(score), other.get(score)
        if ours is not None and base_score is not None and ours == ours and base_score == base_score:
            pairs.append((float(ours), float(base_score)))
    if not pairs:
        return [], [], "no question with this score was asked of both"
    first, second = zip(*pairs, strict=True)
    return list(first), list(second), ""
