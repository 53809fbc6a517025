"""Plans of sweeps: TOML files that list trials, for `workbench sweep --plan FILE`.

[common]                  # fields of every trial, as options of `workbench trial` are named
model = "lab-full"
samples = 500

[[trials]]                # one trial, or all combinations of the lists
mode = "block"
select = ["none", "query_guided"]
ratio = [0.05, 0.15]

[[trials]]
label = "fine-tuned"      # stands as the method of its rows
model = "runs/seed-1/model"
training_of = "my-model"  # stands as the model of its rows, beside the seed that the folder was trained with
"""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from workbench import models
from workbench.core.errors import BadInput, not_allowed, shown
from workbench.experiments.sweeps.sweep_grid import FIELDS, Case, cases
from workbench.experiments.trials.trial import Trial

LABELS = ("label", "training_of")
Lists = dict[str, Sequence[Any]]


def read(path: Path, given: Mapping[str, Sequence[Any]]) -> list[Case]:
    """Return the trials of a plan, each once; `given` stands in place of what the plan says of the same fields.

    A model that a trial of the plan names itself stays.

    Raises BadInput for a file that is no plan.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadInput(f"plan {str(path)!r} is not there") from None
    except (OSError, ValueError) as problem:
        raise BadInput(f"plan {str(path)!r} cannot be read: {problem}") from None
    common, trials = content.get("common", {}), content.get("trials", [])
    if odd := sorted(set(content) - {"common", "trials"}):
        raise not_allowed("table of a plan", odd[0], ("common", "trials"))
    if not isinstance(common, dict) or not isinstance(trials, list) or not trials:
        raise BadInput(f"plan {str(path)!r} lists no [[trials]]")
    found = [case for one in trials for case in _cases(common, one, given)]
    return list({(case.trial, case.method): case for case in found}.values())


def _cases(common: Mapping[str, Any], one: Mapping[str, Any], given: Mapping[str, Sequence[Any]]) -> Iterator[Case]:
    for name in (*common, *one):
        if name not in (*FIELDS, *LABELS, "method"):
            raise not_allowed("field of a plan", name, (*FIELDS, *LABELS, "method"))
    told = {"model": "lab-full", **common, **one}
    lists: Lists = {name: value if isinstance(value, list) else [value] for name, value in told.items()}
    labels = [lists.pop(name, [""])[0] for name in LABELS]
    if odd := [name for name in labels if not isinstance(name, str)]:
        raise BadInput(f"label {shown(odd[0])} of a plan: a text is needed")
    label, training_of = labels
    lists |= {name: values for name, values in given.items() if name != "model" or "model" not in one}
    base = {name: getattr(Trial, name, None) for name in FIELDS}
    for case in cases(base, lists):
        origin = {"model": training_of, "training_seed": models.training_seed(case.trial.model)} if training_of else {}
        yield replace(case, method=label or case.method, origin=tuple(origin.items()))
