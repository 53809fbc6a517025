"""What a leaderboard measures: every method that a model can run, at every charged budget, as trials of a sweep."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from workbench.core.errors import BadInput, not_allowed
from workbench.core.utils import dask_cluster
from workbench.experiments.sweeps import preflight
from workbench.experiments.sweeps import sweep as sweeps
from workbench.experiments.sweeps.sweep_grid import Case, cases
from workbench.experiments.trials.trial import Progress, Trial
from workbench.methods.presets import METHODS
from workbench.models.loading import Loaded

FULL = "full"
BUDGETS = (0.15,)
OWN: dict[str, dict[str, Any]] = {
    "select": {"prepare": "after_system", "ratio": 0.15},
    "prepare": {},
    "sparse": {"mode": "full"},
}


@dataclass(frozen=True)
class Planned:
    """Trials of a leaderboard, full attention first, and a sentence for each method or budget that is left out."""

    cases: tuple[Case, ...]
    budgets: tuple[float, ...]
    left_out: tuple[str, ...] = ()


def planned(
    base: Trial,
    methods: Sequence[str] = (),
    budgets: Sequence[float] = BUDGETS,
    own: Iterable[tuple[str, str]] = (),
    loaded: Loaded | None = None,
    here: bool = True,
) -> Planned:
    """Return what to measure of named `methods` (none: all), and of the reader's own, (kind of policy, name).

    A method that recomputes a share of the tokens is asked for every charged budget, any other once. What cannot run is
    left out, with the reason, and the rest is measured; `here` as in `preflight`. Raises BadInput for an unknown
    method, and where nothing is left to compare.
    """
    for name in methods:
        if name not in METHODS:
            raise not_allowed("method", name, METHODS)
    left_out = [f"budget {one:g}: a share above 0, at most 1, is needed" for one in budgets if not 0 < one <= 1]
    shares = [one for one in dict.fromkeys(budgets) if 0 < one <= 1]
    if not shares:
        raise BadInput(left_out[0] if left_out else "budgets is empty: a share above 0, at most 1, is needed")
    wanted = [(name, {"method": [name]}) for name in dict.fromkeys((FULL, *(methods or METHODS)))]
    wanted += [(name, {"mode": ["block"], kind: [name], **_lists(OWN[kind])}) for kind, name in own]
    found: list[Case] = []
    for name, lists in wanted:
        try:
            found += _cases(base, name, lists, shares)
        except BadInput as problem:
            left_out.append(f"{name}: {problem}")
    wrong = preflight.problems([case.trial for case in found], loaded, here)
    why = {trial: problem for problem, trials in wrong.items() for trial in trials}
    left_out += [f"{case.method}: {why[case.trial]}" for case in found if case.trial in why]
    running = [case for case in found if case.trial not in why]
    if len(running) < 2 or running[0].method != FULL:
        raise BadInput(preflight.told(wrong, len(found)) if wrong else f"{len(running)} methods: two are needed")
    return Planned(tuple(running), tuple(shares), tuple(dict.fromkeys(left_out)))


def measure(
    plan: Planned,
    out: Path,
    jobs: int = 1,
    progress: Progress | None = None,
    loaded: Loaded | None = None,
    cluster: str | None = None,
    retries: int = 1,
) -> dict[str, str]:
    """Measure what `out` does not hold yet, and return {trial: why it failed}; arguments as `sweep.run` takes them.

    Full attention is asked once by each process for all methods, cached blocks are kept from method to method.
    """
    keep = plan.cases[0].trial.store_gib
    return sweeps.run(plan.cases, out, jobs, progress, loaded, keep, cluster, retries).failures


def is_here(cluster: str | None) -> bool:
    """Return whether trials run on this machine."""
    return cluster in (None, dask_cluster.LOCAL)


def _cases(base: Trial, name: str, lists: dict[str, Any], budgets: Sequence[float]) -> list[Case]:
    """Return the trials of one method: at every budget where it has a ratio to set."""
    (once,) = cases(asdict(base), lists)
    settable = (METHODS[name].fields if name in METHODS else lists).get("ratio") is not None
    made = cases(asdict(base), {**lists, "charged": list(budgets)}) if settable else [once]
    return [Case(case.trial, name) for case in made]


def _lists(fields: dict[str, Any]) -> dict[str, list[Any]]:
    return {name: [value] for name, value in fields.items()}
