"""For every notebook: checked parameters, results in a folder, and whether the session is interactive.

    samples: int = 100               # questions to ask          (cell tagged `parameters`)
    mode: str = "block"              # full or block
    output: Optional[str] = None     # folder for the results; none: keep them here

    notebook.validate(globals(), samples=notebook.between(1, 10_000), mode=notebook.one_of("full", "block"))

    notebook.sized(globals(), lm, samples=(100, 4))               # for parameters that are None, once a model is loaded

    found = notebook.results(results)                             # tables of the given folders
    notebook.save(output, {"f1": 0.91}, tables={"by_kind": frame})                            (last cell)

Papermill does not check types. `validate` belongs into the cell after the parameters, which imports only
`workbench.app.notebooks.notebook`, so that a report can check every notebook before it runs the first.
"""

import json
import math
import os
import types
from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin

from IPython.core.getipython import get_ipython
from IPython.display import HTML, display

from workbench.app.notebooks import told
from workbench.app.notebooks import values as notebook_values
from workbench.core.errors import BadInput, format_value
from workbench.core.utils.annotations import check as check_value
from workbench.core.utils.annotations import fits_annotation, plain, words
from workbench.core.utils.files import write_atomically, write_text
from workbench.core.utils.watched import BATCH, OPENED

if TYPE_CHECKING:
    import pandas
    from transformers import PreTrainedModel

    from workbench.results import Results


__all__ = [
    "KV_HEAD",
    "at_least",
    "between",
    "first_view",
    "is_live",
    "multiple_of",
    "one_of",
    "policy",
    "results",
    "save",
    "sized",
    "validate",
]


def __dir__() -> list[str]:
    return sorted(__all__)


FINDING = "finding"  # key in metrics.json
HERE = "here"  # source of a notebook's own measurements
SUCCESS = "_SUCCESS"  # written last: a folder without it is not complete
READER, SMALL_READER = "smollm2-reader", "lab-full"
SHOWN = {  # prompts answered right by full attention, wrong by plain reuse, right with 10 to 60% recomputed (26 shares)
    READER: {
        "data": "bridges-sample",
        "sample": 0,
        "passages": 8,
        "sparse_methods": ["xattention(block=32, stride=4, threshold=0.99)"],
    },
    SMALL_READER: {"data": "lab", "sample": 1, "passages": 24, "sparse_methods": ["flash_prefill"]},
}
SMALL = 50_000_000  # parameters; two cores prefill larger models at some 400 tokens a second


@dataclass(frozen=True)
class Check:
    """A condition on a value beyond its type, with its description; lists are checked element by element."""

    allowed: str
    holds: Callable[[Any], bool]


KV_HEAD = Check("the number of a KV head", lambda value: value >= 0)


def between(low: float, high: float) -> Check:
    """Check that low <= value <= high."""
    return Check(f"between {low:,} and {high:,}", lambda value: low <= value <= high)


def at_least(low: float) -> Check:
    """Check that low <= value."""
    return Check(f"at least {low:,}", lambda value: low <= value)


def one_of(*choices: object) -> Check:
    """Check that a value is one of `choices`."""
    return Check(f"one of {', '.join(map(str, choices))}", lambda value: value in choices)


def multiple_of(step: int) -> Check:
    """Check that a value is a positive multiple of `step`."""
    return Check(f"a multiple of {step:,}", lambda value: value > 0 and value % step == 0)


def policy(kind: str) -> Check:
    """Check that a value names a policy, with or without options; `kind` is prepare, select or sparse."""
    return Check(f"a name of workbench.methods.{kind}", lambda value: notebook_values.is_policy(kind, value))


def validate(namespace: MutableMapping[str, Any], **checks: Check) -> None:
    """Check every annotated name of `namespace` against its annotation, and against its check if it has one.

    Values are converted to their annotation: 1e-3 (text in YAML) to a float, a list to an annotated tuple. One line
    shows them (`told`). Raises BadInput that names the parameter, the value and what is allowed.
    """
    if is_live():  # figures follow JupyterLab's theme from here on
        with told.importing():
            _validate(namespace, checks)
            display(HTML(import_module("workbench.plots.marks.theme").NOTEBOOK_STYLE))
    else:
        _validate(namespace, checks)
    told.begin(namespace, waits=is_live())


def _validate(namespace: MutableMapping[str, Any], checks: Mapping[str, Check]) -> None:
    annotations = namespace.get("__annotations__", {})
    _check_names(checks, annotations)
    for name, annotation in annotations.items():
        value = _typed(name, namespace[name], annotation)
        for item in value if isinstance(value, list | tuple) else (value,):
            if name in checks and value is not None and not _holds(checks[name], name, item):
                raise BadInput(f"parameter {name} is {format_value(item)}: allowed is {checks[name].allowed}")
        namespace[name] = value
    of_keys = {name for name, check in checks.items() if check is KV_HEAD}
    notebook_values.check({f"kv_{name}" if name in of_keys else name: namespace[name] for name in annotations})


def _holds(check: Check, name: str, value: Any) -> bool:
    """Return whether the check holds; a check may raise BadInput itself."""
    try:
        return check.holds(value)
    except BadInput as why:
        raise BadInput(f"parameter {name} is {format_value(value)}: {why}") from None


def _check_names(given: Collection[str], annotations: Mapping[str, Any]) -> None:
    """Raise BadInput for unknown parameters."""
    if unknown := sorted(set(given) - set(annotations)):
        raise BadInput(
            f"no parameter is named {', '.join(unknown)}: there are {', '.join(sorted(annotations)) or 'none'}"
        )


def _typed(name: str, value: Any, annotation: Any) -> Any:
    """Convert `value` to `annotation`. Raises BadInput if that is impossible."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        for part in parts:
            if _fits(value, part):
                return _typed(name, value, part)
    elif _fits(value, annotation):
        if origin in (list, tuple) and parts:
            return origin(_typed(name, item, parts[0]) for item in value)
        return plain(annotation)(value) if annotation is float else value
    check_value(f"parameter {name}", value, annotation)
    raise BadInput(f"parameter {name} is {format_value(value)}: it must be {words(annotation)}")


def _fits(value: Any, annotation: Any) -> bool:
    """Return whether `value` has the outer type of `annotation`; elements of lists are checked later."""
    kind = plain(annotation)
    if kind is float:
        return fits_annotation(value, int) or (isinstance(value, float | str) and _is_finite(value))
    if kind in (list, tuple):
        return isinstance(value, list | tuple)
    return fits_annotation(value, kind)


def _is_finite(value: float | str) -> bool:
    try:
        return math.isfinite(float(value))
    except ValueError:
        return False


def sized(namespace: MutableMapping[str, Any], model: "PreTrainedModel", **values: tuple[Any, Any]) -> None:
    """Set every parameter that is None to a value that suits `model`, so that the notebook takes a minute or two.

    `values` has two per name: for a small model or any on an accelerator, and for a larger model on a CPU. Other
    parameters keep their value. Raises BadInput for a name that is not a parameter.
    """
    _check_names(values, namespace.get("__annotations__", {}))
    is_quick = model.device.type != "cpu" or sum(weight.numel() for weight in model.parameters()) <= SMALL
    for name, (quick, slow) in values.items():
        if namespace[name] is None:
            namespace[name] = quick if is_quick else slow
    told.add(parameters=told.values(namespace))


def first_view(namespace: MutableMapping[str, Any]) -> None:
    """Set parameters that are None to the default first view: a prompt on real text if its model is fetched.

    They are `model` and the keys of SHOWN; others keep their value. With the user's data or text, the model is the
    shipped one.
    """
    from workbench.models import pretrained

    if namespace["model"] is None:
        own = namespace["data"] is not None or namespace["text"] or not pretrained.is_there("smollm2")
        namespace["model"] = SMALL_READER if own else READER
    shown = SHOWN[READER if namespace["model"] == READER and namespace["data"] is None else SMALL_READER]
    for name, value in shown.items():
        if namespace[name] is None:
            namespace[name] = value


def is_live() -> bool:
    """Return whether the session is interactive: explorers and progress bars if so, else plotly's own controls.

    Jupyter's server sets the kernel's session name, VS Code the file, Colab its release; papermill and nbconvert set
    none of these.
    """
    shell = get_ipython()
    if shell is None or os.environ.get(BATCH):
        return False
    return "__vsc_ipynb_file__" in shell.user_ns or not set(OPENED).isdisjoint(os.environ)


def results(places: str | Sequence[str]) -> "Results":
    """Read the result tables of a notebook's parameter `results`: "shipped", and folders that `--out` wrote."""
    from workbench import results as tables  # imports pandas: not while parameters are checked

    return tables.read(places)


def save(
    output: str | os.PathLike[str] | None,
    metrics: Mapping[str, Any],
    tables: "Mapping[str, pandas.DataFrame | Sequence[Mapping[str, Any]]] | None" = None,
    read: Mapping[str, Mapping[str, Any]] | None = None,
    finding: str = "",
) -> None:
    """Write `metrics.json` and one `<name>.parquet` per table into the folder `output`, `_SUCCESS` last.

    `finding` is the result in a sentence: first in the report, above the parameters in a live notebook. `metrics` were
    measured here, `read` are of loaded results, by source: metrics.json holds {source: metrics}, "here" first. A table
    is a DataFrame or a list of records; a missing column `source` becomes "here". Files are written atomically, and
    none if `output` is None.
    """
    if finding and is_live():
        told.add(finding=finding)
    if output is None:
        return
    metrics = {HERE: dict(metrics), **(read or {}), **({FINDING: finding} if finding else {})}
    folder = Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SUCCESS).unlink(missing_ok=True)
    text = json.dumps(metrics, indent=2, default=_jsonable, allow_nan=False)
    write_text(folder / "metrics.json", text + "\n")
    for name, table in (tables or {}).items():
        frame = import_module("pandas").DataFrame(table)
        frame = frame if "source" in frame else frame.assign(source=HERE)
        write_atomically(folder / f"{name}.parquet", frame.to_parquet)
    write_text(folder / SUCCESS, "")


def _jsonable(value: Any) -> Any:
    """Return numbers of numpy and torch, and arrays of them."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"metrics hold numbers, texts, lists and mappings, not {type(value).__name__}")
