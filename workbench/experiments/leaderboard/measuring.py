"""A leaderboard: methods are measured at every charged budget, then ranked, for example

    (board,) = leaderboard(Trial("lab-full", samples=50), "runs/leaderboard", ["full-reuse", "epic", "cacheblend"])
    print(board.title, board.table)

Without names, every method that the model can run is measured.
"""

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from workbench.core.errors import BadInput
from workbench.core.utils import runner
from workbench.core.utils.watched import Progress, progress_shown
from workbench.experiments.leaderboard.board import Board
from workbench.experiments.leaderboard.ranking import boards
from workbench.experiments.sweeps import sweep as sweeps
from workbench.experiments.sweeps import sweep_grid
from workbench.experiments.sweeps.sweep_grid import Case, cases
from workbench.experiments.trials import budget
from workbench.experiments.trials.trial import Trial
from workbench.methods import correct
from workbench.methods.own import installed
from workbench.methods.presets import METHODS, OWN_NUMBER, unknown_method
from workbench.models.loading import Loaded
from workbench.results import read

FULL = "full"
BUDGETS = (0.15,)
OWN: dict[str, dict[str, Any]] = {
    "select": {"prepare": "after_system", "ratio": 0.15},
    "prepare": {},
    "correct": {},
    "attend": {"select": "query_guided", "ratio": 0.15},
    "sparse": {"mode": "full"},
}


@dataclass(frozen=True)
class PlannedTrials:
    """Trials of a leaderboard, full attention first, and a sentence for each omitted method or budget."""

    cases: tuple[Case, ...]
    budgets: tuple[float, ...]
    left_out: tuple[str, ...] = ()


def plan_trials(
    base: Trial,
    methods: Sequence[str] = (),
    budgets: Sequence[float] = BUDGETS,
    own: Iterable[tuple[str, str]] = (),
    loaded: Loaded | None = None,
    here: bool = True,
) -> PlannedTrials:
    """Return the trials for named `methods` (none: all), and for the user's own policies, (kind, name).

    A method that recomputes a share of the tokens is measured at every charged budget, any other once, and those of
    `OWN_NUMBER` at every budget and at their own number. Trials that cannot run are omitted, with the reason. If no
    ratio keeps a budget, as with short prompts, each method is measured at its own ratio. `here` is that of
    `sweep_grid.problems`. Raises BadInput for an unknown method, and if nothing is left to compare.
    """
    wanted = planned_methods(methods, own)
    left_out = [f"budget {one:g}: a share above 0, at most 1, is needed" for one in budgets if not 0 < one <= 1]
    shares = [one for one in dict.fromkeys(budgets) if 0 < one <= 1]
    if not shares:
        raise BadInput(left_out[0] if left_out else "budgets is empty: a share above 0, at most 1, is needed")
    running, refused, wrong = _checked(base, wanted, shares, loaded, here)
    if not any(case.trial.charged for case in running):
        unpriced = _checked(base, wanted, (), loaded, here)
        if len(unpriced[0]) > len(running):
            left_out.append(
                f"budgets: no ratio of these methods keeps {max(shares):.0%} of these prompts: each runs at its own"
            )
            running, refused, wrong = unpriced
    if not running or running[0].method != FULL:
        count = len(running) + sum(map(len, wrong.values()))
        raise BadInput(sweep_grid.describe_problems(wrong, count) if wrong else f"{FULL}: it cannot run")
    if len({case.method for case in running}) < 3:
        alone = running[1].method if len(running) > 1 else "none"
        why = "".join(f"; {one}" for one in dict.fromkeys(refused))
        raise BadInput(f"two methods beside full attention are needed to rank, there is {alone}{why}")
    return PlannedTrials(tuple(running), tuple(shares), tuple(dict.fromkeys([*left_out, *refused])))


def planned_methods(methods: Sequence[str], own: Iterable[tuple[str, str]]) -> list[tuple[str, dict[str, list[Any]]]]:
    """Return full attention, the named `methods` (none: all) and the user's own, each with lists of its fields.

    Policies of installed packages are included if they are named, or if no method is.
    """
    packaged = set(installed())
    mine = [each for each in own if each not in packaged or not methods or each[1] in methods]
    known = [*METHODS, *(name for _, name in mine)]
    if odd := [name for name in methods if name not in known]:
        raise unknown_method(odd[0], known)
    published = [name for name in methods or METHODS if name in METHODS]
    wanted: list[tuple[str, dict[str, list[Any]]]]
    wanted = [(name, {"method": [name]}) for name in dict.fromkeys((FULL, *published))]
    return wanted + [(name, {"mode": ["block"], kind: [name], **_lists(_own(kind, name))}) for kind, name in mine]


def _own(kind: str, name: str) -> dict[str, Any]:
    """Return further fields of a user's own method; a correction that chooses tokens has a ratio."""
    return OWN[kind] | ({"ratio": 0.15} if kind == "correct" and correct.from_spec(name).chooses else {})


def _checked(
    base: Trial,
    wanted: Iterable[tuple[str, dict[str, Any]]],
    budgets: Sequence[float],
    loaded: Loaded | None,
    here: bool,
) -> tuple[list[Case], list[str], dict[str, list[Trial]]]:
    """Return the trials that can run, reasons for the others, and {problem: trials}; without budgets, raise at once."""
    found: list[Case] = []
    refused = []
    for name, lists in wanted:
        try:
            found += _cases(base, name, lists, budgets)
        except BadInput as problem:
            refused.append(f"{name}: {problem}")
    wrong = sweep_grid.problems([case.trial for case in found], loaded, here)
    why = {trial: problem for problem, trials in wrong.items() for trial in trials}
    too_much: dict[tuple[str, str], list[str]] = {}  # (method, why) → budgets
    for case in (case for case in found if case.trial in why):
        reason, of = why[case.trial], budget.message_prefix(case.trial.charged)
        of = of if of and reason.startswith(of) else ""
        too_much.setdefault((case.method, reason.removeprefix(of)), []).append(of)
    refused += [f"{name}: {', '.join(filter(None, of))}{reason}" for (name, reason), of in too_much.items()]
    first: dict[Trial, str] = {}
    for case in (case for case in found if case.trial not in why):
        same = first.setdefault(case.trial, case.method)
        if same != case.method:
            refused.append(f"{case.method}: it computes what {same} does, which is listed")
    return [Case(trial, name) for trial, name in first.items()], refused, wrong


def measure(
    plan: PlannedTrials,
    out: Path,
    jobs: int = 1,
    progress: Progress | None = None,
    loaded: Loaded | None = None,
    cluster: str | None = None,
    retries: int = 1,
) -> sweeps.SweepResult:
    """Measure the trials that `out` lacks; the arguments are those of `sweep.run`.

    Each process runs full attention once for all methods, and keeps cached blocks from method to method.
    """
    keep = sweeps.cache_gib(plan.cases[0].trial, jobs)
    return sweeps.run(plan.cases, out, jobs, progress, loaded, keep, cluster, retries)


def is_here(cluster: str | None) -> bool:
    """Return whether trials run on this machine."""
    return cluster in (None, runner.LOCAL)


def _cases(base: Trial, name: str, lists: dict[str, Any], budgets: Sequence[float]) -> list[Case]:
    """Return the trials of one method: one per budget if a ratio can be set, and one without if it has none."""
    once = cases(asdict(base), lists)
    rated = (METHODS[name].fields if name in METHODS else lists).get("ratio") is not None
    if not budgets or not (rated or name in OWN_NUMBER):
        within = []
    else:
        within = cases(asdict(base), {**lists, "charged": list(budgets)})
    return [Case(case.trial, name) for case in (*within, *(() if rated and within else once))]


def _lists(fields: dict[str, Any]) -> dict[str, list[Any]]:
    return {name: [value] for name, value in fields.items()}


def leaderboard(
    base: Trial,
    out: str | Path,
    methods: Sequence[str] = (),
    budgets: Sequence[float] = BUDGETS,
    by: str = "",
    jobs: int = 1,
    progress: Progress | None = None,
    loaded: Loaded | None = None,
) -> list[Board]:
    """Measure `methods` (none: all) on the questions of `base`, and return a ranked board for each budget.

    Results are kept in `out`, so that the same call continues after an interruption. Omitted methods are warned of,
    with the reason. Without `progress`, interactive sessions show a bar. Raises BadInput as `plan_trials` does, and
    `Failed` if a trial failed.
    """
    plan = plan_trials(base, methods, budgets, loaded=loaded)
    for note in plan.left_out:
        warnings.warn(f"left out: {note}", stacklevel=2)
    with progress_shown("leaderboard", progress) as tell:
        outcome = measure(plan, Path(out), jobs, tell, loaded)
    if outcome.failures:
        raise sweeps.Failed(outcome)
    return boards(read(str(out)), plan.budgets, by, base.model, base.data)
