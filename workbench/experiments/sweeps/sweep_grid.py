"""The trials of a sweep: every combination of lists of a trial's fields, once.

Plans are TOML files that list trials, for `workbench sweep --plan FILE`.

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

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Any

from workbench import models
from workbench.core.errors import BadInput, not_allowed, shown
from workbench.experiments.trials.trial import Trial
from workbench.methods import own, presets
from workbench.methods.method_fields import REUSE

FIELDS = tuple(field.name for field in fields(Trial))


@dataclass(frozen=True)
class Case:
    """A trial of a sweep, and the published method it was asked for by, if any.

    origin   columns of its rows that stand in place of the trial's own, as (name, value)
    """

    trial: Trial
    method: str = ""
    origin: tuple[tuple[str, Any], ...] = ()

    @cached_property
    def key(self) -> str:
        """Hash of the trial and of the state of its files, so that nothing stale is taken for finished."""
        state = [self.trial.settings(), files_of(self.trial)]
        return sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def name(self) -> str:
        """The model and every field that is not at its default, as text."""
        default = asdict(Trial(self.trial.model))
        settings = [f"{name}={value}" for name, value in asdict(self.trial).items() if value != default[name]]
        return ", ".join([self.trial.model, *settings])


def cases(base: Mapping[str, Any], lists: Mapping[str, Sequence[Any]]) -> list[Case]:
    """Return the trials of a sweep, each once.

    A field in a list that does not apply (a ratio where nothing is selected, a selector of full attention) is left at
    its default there, so combinations that come to the same trial are run once.
    """
    for name, values in lists.items():
        if name not in (*FIELDS, "method"):
            raise BadInput(f"a trial has no field {name!r}: allowed are method, {', '.join(FIELDS)}")
        if isinstance(values, str) or not len(values):
            raise BadInput(f"{name} is {values!r}: a list of at least one value is needed")
    trials: dict[Trial, Case] = {}
    for values in product(*lists.values()):
        given = dict(zip(lists, values, strict=True))
        method = given.pop("method", None)
        options = {**base, **presets.options(method, given)}
        if options["mode"] != "block":
            options |= {name: getattr(Trial, name) for name in REUSE if name in given}
        elif options["select"] == options.get("correct", "none") == "none":
            options |= {name: None for name in ("ratio", "charged") if name in given}
        trial = Trial(**options)
        trials.setdefault(trial, Case(trial, method or ""))
    return list(trials.values())


def files_of(trial: Trial) -> list[list[Any]]:
    """List name, size and time of the files that a trial reads."""
    try:
        paths = sorted(path for path in models.folder(trial.model).iterdir() if path.is_file())
    except BadInput:
        paths = []  # a model that is in memory only
    named = (trial.data, trial.prepared, trial.store, trial.layout)
    paths += [path for path in map(Path, filter(None, named)) if path.exists()] + own.files()
    return [[path.name, path.stat().st_size, path.stat().st_mtime_ns] for path in paths]


LABELS = ("label", "training_of")
Lists = dict[str, Sequence[Any]]


def read_plan(path: Path, given: Mapping[str, Sequence[Any]]) -> list[Case]:
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
