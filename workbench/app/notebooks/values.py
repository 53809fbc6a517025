"""Check notebook parameters against the model, the data and the device, before any work.

Shipped models are checked without importing a model library, so that a report can check all notebooks first.
"""

import re
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from workbench.core.errors import BadInput, format_value
from workbench.core.utils import json_text
from workbench.core.utils.files import check_folder, is_dir

MOST_SAMPLES = 10_000  # of generated data: a notebook generates all up to the one it shows
PARTS = {"layer": "num_hidden_layers", "head": "num_attention_heads", "kv_head": "num_key_value_heads"}


def check(values: Mapping[str, Any]) -> None:
    """Raise BadInput for the first value that is missing or invalid, with what is allowed.

    device, model, data     by name; files of questions are read
    sample                  within the data
    layer, head, kv_head    within the model
    output                  a folder that can be created and written to
    """
    for name, look in (("device", _device), ("model", _model), ("data", _data), ("output", _output)):
        if isinstance(values.get(name), str):
            look(values[name])
    if isinstance(values.get("sample"), int) and isinstance(values.get("data"), str):
        _in_range("sample", values["sample"], _samples(values["data"]), f"data {values['data']!r}")
    for name, field in PARTS.items():
        count = _declared(values["model"]).get(field) if isinstance(values.get("model"), str) else None
        if isinstance(values.get(name), int) and isinstance(count, int):
            _in_range(name.removeprefix("kv_"), values[name], count, f"model {values['model']!r}")


def is_policy(kind: str, spec: str) -> bool:
    """Return True for a valid policy of workbench/methods/<kind>; one with options is constructed.

    Raises BadInput if that fails.
    """
    if spec in {path.stem for path in (Path(__file__).parents[2] / "methods" / kind).glob("[!_]*.py")}:
        return True
    import_module("workbench.methods.unimported").check(f"workbench.methods.{kind}", spec)
    import_module("workbench.methods.registry").check_spec(f"workbench.methods.{kind}", spec)
    return True


def _in_range(name: str, value: int, count: int, of: str) -> None:
    if not 0 <= value < count:
        raise BadInput(f"parameter {name} is {format_value(value)}: {of} has 0 to {count - 1:,}")


def _device(name: str) -> None:
    if name != "cpu":
        from workbench.models.model_names import device_of

        device_of(name)


def _output(place: str) -> None:
    check_folder("parameter output", place)


def _model(name: str) -> None:
    _declared(name)


@cache
def _declared(name: str) -> dict[str, Any]:
    """Return the configuration of a model's decoder; {} for a model that is not fetched yet."""
    from workbench.data import assets

    folder = Path(name) if is_dir(name) else assets.ROOT / "models" / name if name in assets.models() else None
    if folder is None or not (folder / "config.json").is_file():
        from workbench.models import checkpoints, model_names, pretrained

        base = checkpoints.base_name(name)
        if base in pretrained.CATALOGUE and not pretrained.is_there(base):
            return {}
        folder = checkpoints.base_folder(model_names.folder(name))
    config = json_text.read_json(folder / "config.json")
    inner = config.get("text_config")
    return inner if isinstance(inner, dict) else config


def _data(name: str) -> None:
    _samples(name)


@cache
def _samples(name: str) -> int:
    """Return the number of samples; for generated data the maximum that a notebook may generate."""
    from workbench import data
    from workbench.data.installed_docs import samples as manuals
    from workbench.data.lab_corpus import style as lab_style

    if lab_style.is_lab(name):
        lab_style.style_named(name)
        return MOST_SAMPLES
    if data.is_generated(name) or re.fullmatch("|".join(map(re.escape, manuals.PARTS)), name):
        return MOST_SAMPLES
    return len(data.load(name, answered=False))
