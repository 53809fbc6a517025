"""Plans of sweeps: TOML files that list trials, for `workbench sweep --plan FILE`. Has no slow imports.

    [common]                  # fields of every trial, named as options of `workbench trial`
    model = "lab-full"
    samples = 500

    [[trials]]                # one trial, or all combinations of the lists
    mode = "block"
    select = ["none", "query_guided"]
    ratio = [0.05, 0.15]

    [[trials]]
    label = "fine-tuned"
    model = "runs/seed-1/model"
    training_of = "my-model"

In result rows, `label` replaces the method, and `training_of` the model, with the seed that the folder was trained
with.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from workbench.core.errors import BadInput, did_you_mean, format_value, not_allowed
from workbench.experiments.trials.trial_fields import TrialFields

FIELDS = tuple(field.name for field in fields(TrialFields))
LABELS = ("label", "training_of")


@dataclass(frozen=True)
class Part:
    """A table of a plan: lists of values of fields, and what replaces method and model in their rows."""

    lists: Mapping[str, Sequence[Any]]
    label: str = ""
    training_of: str = ""


def parts(path: Path, overrides: Mapping[str, Sequence[Any]]) -> list[Part]:
    """Return the tables of a plan; `overrides` replace the plan's values of the same fields.

    A model that a trial of the plan names itself is not overridden. Raises BadInput for a file that is not a plan.
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
    if not all(isinstance(each, dict) for each in (common, *trials)) or not trials:
        raise BadInput(f"plan {str(path)!r} lists no [[trials]]")
    return [_part(common, one, overrides) for one in trials]


def _part(common: Mapping[str, Any], one: Mapping[str, Any], overrides: Mapping[str, Sequence[Any]]) -> Part:
    for name in (*common, *one):
        if name not in (*FIELDS, *LABELS, "method"):
            raise not_allowed("field of a plan", name, (*FIELDS, *LABELS, "method"))
    options = {"model": "lab-full", **common, **one}
    lists: dict[str, Sequence[Any]] = {name: x if isinstance(x, list) else [x] for name, x in options.items()}
    labels = [lists.pop(name, [""])[0] for name in LABELS]
    if odd := [name for name in labels if not isinstance(name, str)]:
        raise BadInput(f"label {format_value(odd[0])} of a plan: a text is needed")
    lists |= {name: values for name, values in overrides.items() if name != "model" or "model" not in one}
    check_lists(lists)
    return Part(lists, *labels)


def check_lists(lists: Mapping[str, Sequence[Any]]) -> None:
    """Reject a list for an unknown field, and a value that is not a list."""
    for name, values in lists.items():
        if name not in (*FIELDS, "method"):
            raise BadInput(
                f"a trial has no field {name!r}: allowed are method, {', '.join(FIELDS)}{did_you_mean(name, FIELDS)}"
            )
        if isinstance(values, str) or not hasattr(values, "__len__") or not len(values):
            raise BadInput(f"{name} is {format_value(values)}: a list of at least one value is needed")
