"""Model folders, and checks that they are complete; only the headers of weight files are read."""

import json
import re
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from workbench.core.errors import BadInput, first_line, format_value
from workbench.core.utils import json_text
from workbench.core.utils.files import is_file
from workbench.data import assets
from workbench.models.model_names import folder
from workbench.models.weights import adapters
from workbench.models.weights.adapters import Adapter

FOLDER = "a checkpoint folder has config.json, a tokenizer and safetensors weights"
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tekken.json")
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
COMPACT = "weights.int8.safetensors"  # written and read by `models.weights.compact`
DIFFERENCE = "difference.safetensors"  # written and read by `models.weights.delta_weights`
BASE = "base"  # metadata key of a difference: name of the base model
SCALE = ".scale"  # name suffix of scales in compact files, [rows, 1] fp32


def checkpoint_folder(model: str) -> Path:
    """Return the folder of a model by name or path.

    Raises BadInput if it has neither config.json nor an adapter, and for an adapter whose base model is missing.
    """
    path = folder(model)
    if adapters.is_adapter(path):
        base_folder(path)
    elif not is_file(path / "config.json"):
        read_json(path / "config.json", FOLDER)
    return path


def check(path: Path) -> None:
    """Raise BadInput, naming the file, unless `path` contains a complete checkpoint: config, tokenizer and all weights.

    Weights are safetensors, in one file or in shards; each header is compared with the file's length. For an adapter,
    the base model is checked too, and that the adapter was trained on it.
    """
    if adapters.is_adapter(path):
        for file in adapters.files_of(path):
            check_weights(file)
        base = adapted_folder(path)
        check(base)
        adapter_of(path).check_base(weights_of(base))
        return
    config = read_json(path / "config.json", FOLDER)
    if "model_type" not in config:
        raise BadInput(f"{path / 'config.json'} has no model_type")
    if not any((path / name).is_file() for name in TOKENIZERS):
        raise BadInput(f"{path} has no tokenizer: one of {', '.join(TOKENIZERS)} is needed")
    if (path / "tokenizer.json").is_file():
        read_json(path / "tokenizer.json")
    for shard in shards(path):
        check_weights(shard)


def base_folder(path: Path) -> Path:
    """Return the folder with config, tokenizer and weights: `path` itself, or that of an adapter's base model.

    Raises BadInput for a missing base model, with the command to fetch it.
    """
    return base_folder(adapted_folder(path)) if adapters.is_adapter(path) else path


def adapted_folder(path: Path) -> Path:
    """Return the folder that an adapter applies to: a model or, for soft tokens without LoRA, a LoRA adapter.

    Raises BadInput if it is missing, and for LoRA over an adapter.
    """
    adapter = adapter_of(path)
    name = adapter.base
    try:
        base = folder(name)
    except BadInput as problem:
        shipped, get = path.name if path.name in assets.models() else path, f"workbench models get {name}"
        is_name = re.fullmatch(r"[\w.-]+", name)
        how = "" if get in str(problem) else f" ({get if is_name else 'copy or download it first'})"
        raise BadInput(f"{shipped} is an adapter of {name!r}, which is not here{how}: {problem}") from None
    if adapters.is_adapter(base) and (adapter.rank or not adapter_of(base).rank):
        raise BadInput(f"{path} is an adapter of {name!r}, which is an adapter too: a whole model is needed")
    return base


def chain(path: Path) -> list[Path]:
    """Return the folders of a model's adapters in the order of their application; [] if it has none."""
    return [*chain(adapted_folder(path)), path] if adapters.is_adapter(path) else []


def base_name(model: str) -> str:
    """Return the name of a shipped adapter's base model; for other models, the name itself."""
    path = assets.model_path(model) if model in assets.models() else None
    return base_name(adapter_of(path).base) if path is not None and adapters.is_adapter(path) else model


def weights_of(path: Path) -> list[Path]:
    """Return the safetensors files of a model; for an adapter, those of its base model first."""
    return [*weights_of(adapted_folder(path)), *adapters.files_of(path)] if adapters.is_adapter(path) else shards(path)


def adapter_of(path: Path) -> Adapter:
    """Read the declarations of an adapter folder. Raises BadInput if they are not JSON objects."""
    declared = path / "workbench.json"
    about = read_json(declared).get("adapter", {}) if declared.is_file() else {}
    if not isinstance(about, dict):
        raise BadInput(f"{declared}: adapter is {json.dumps(about)}, an object is needed")
    config = read_json(path / adapters.CONFIG) if (path / adapters.CONFIG).is_file() else {}
    return Adapter.of(path, config, about)


def shards(path: Path) -> list[Path]:
    """Return the safetensors files of a folder. Raises BadInput if there are none, or for an invalid index."""
    for single in (WEIGHTS, COMPACT, DIFFERENCE):
        if (path / single).is_file():
            return [path / single]
    if not (path / INDEX).is_file():
        raise BadInput(f"{path} has no weights: {WEIGHTS} or {INDEX} with its shards is needed")
    index = read_json(path / INDEX).get("weight_map")
    if not isinstance(index, dict) or not index:
        raise BadInput(f"{path / INDEX} has no weight_map")
    for name in index.values():
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
            raise BadInput(
                f"{path / INDEX} names {format_value(name)}: files of the folder are needed, name.safetensors"
            )
    return [path / name for name in sorted(set(index.values()))]


def check_weights(shard: Path) -> None:
    """Raise BadInput for a weight file that is missing, truncated or empty; tensors are not read."""
    if not is_file(shard):
        raise BadInput(f"{shard} is missing: the checkpoint is not whole")
    try:
        with safe_open(shard, framework="np") as weights:  # maps the file, and checks its header and length
            keys = list(weights.keys())
    except (SafetensorError, OSError) as problem:
        raise BadInput(f"{shard} is corrupt or half-written: {first_line(problem)}") from None
    if not keys:
        raise BadInput(f"{shard} holds no weights")


def read_json(path: Path, hint: str = "the checkpoint is not whole") -> dict[str, Any]:
    """Return the object in a JSON file. Raises BadInput, naming the file."""
    return dict(json_text.read_json(path, hint=hint))
