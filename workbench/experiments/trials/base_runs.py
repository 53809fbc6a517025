"""Which run each run is compared with: the full-attention run of the same model, data and seed, or a chosen one."""

from collections.abc import Sequence

from workbench.core.errors import BadInput, did_you_mean
from workbench.experiments.trials.runs import Run

SHARED = ("model", "data", "seed", "passages", "layout", "dtype", "device")  # what a run shares with its base
CLOSER = ("samples", "max_new_tokens", "chunk", "engine")  # among several, the one that shares most of these


def is_full(run: Run) -> bool:
    """Return whether a run computed every token with dense attention."""
    return run.parameters.get("mode") == "full" and run.parameters.get("sparse") in (None, "none")


def find_bases(runs: Sequence[Run], base: str | None = None) -> dict[str, Run]:
    """Return the base of each run by the run's name; a base is its own.

    `base` names one for all, by name or number from 1. Without it, the base is the full-attention run of the same
    model, data and seed, on the same passages and device, in the same layout and dtype. Of several, one that most
    resembles the run; a full-attention run that is nobody's base is compared with one that is.

    Raises BadInput for an unknown base, for a run without a full-attention run, and if there is nothing to compare.
    """
    if base is not None:
        by_name = {str(number): run for number, run in enumerate(runs, 1)} | {run.name: run for run in runs}
        if base not in by_name:
            hint = did_you_mean(base, [run.name for run in runs])
            raise BadInput(f"no run is named {base!r}{hint or ':'} the runs, by number and name, are{_listed(runs)}")
        return {run.name: by_name[base] for run in runs}
    full = [run for run in runs if is_full(run)]
    chosen = {run.name: _closest(run, full) for run in runs if not is_full(run)}
    bases = [run for run in full if any(each is run for each in chosen.values())]
    for run in full:
        bases += [] if _closest(run, bases) else [run]
        chosen[run.name] = run if any(each is run for each in bases) else _closest(run, bases)
    alone = [run.name for run in runs if chosen[run.name] is None]
    if not alone and len(bases) < len(runs):
        return {name: each for name, each in chosen.items() if each is not None}
    why = "every run is full attention of its own model, data and seed"
    if alone:
        why = f"no full-attention run has the model, data, seed and device of {alone[0]!r}"
    raise BadInput(f"--base is required, a name or a number: {why}; the runs are{_listed(runs)}")


def shared_fields(bases: Sequence[Run]) -> str:
    """Say what tells bases apart, as in "model and seed": every run shares that with its own."""
    keys = [key for key in (*SHARED, *CLOSER) if len({str(run.parameters.get(key)) for run in bases}) > 1]
    return " and ".join(filter(None, (", ".join(keys[:-1]), *keys[-1:]))) or "settings"


def _closest(run: Run, full: Sequence[Run]) -> Run | None:
    """Return the full-attention run that a run is compared with; the first among equals, None without any."""
    of_same = [each for each in full if all(_equal(run, each, key) for key in SHARED)]
    return max(of_same, key=lambda each: sum(_equal(run, each, key) for key in CLOSER), default=None)


def _equal(run: Run, full: Run, key: str) -> bool:
    """Return whether both have the same value; a trial that has not run yet has no device."""
    ours, theirs = run.parameters, full.parameters
    return ours.get(key) == theirs.get(key) or (key == "device" and (key not in ours or key not in theirs))


def _listed(runs: Sequence[Run]) -> str:
    return "".join(f"\n  {number}  {run.name}" for number, run in enumerate(runs, 1))
