"""Models by name or folder, checked before anything is loaded."""

import json
import re
from json import JSONDecodeError
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError
from safetensors import SafetensorError, safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from workbench.core.errors import BadInput
from workbench.data import assets, chat_template, layouts
from workbench.data.layouts import RELEASED, Layout
from workbench.models import adapters, fetched
from workbench.models.adapters import Adapter
from workbench.models.allocator import keep_freed
from workbench.models.spec import ModelSpec, attach

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, SafetensorError)
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tekken.json")
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


class Loaded(NamedTuple):
    """A model with its tokenizer and its prompt layout: `model, tokenizer, layout = models.load(name)`."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    layout: Layout

    @property
    def spec(self) -> ModelSpec:
        """What the engine knows of the model: layers, shapes, context, sliding windows. Attaches the model."""
        return attach(self.model)

    def with_layout(self, layout: "str | Layout | None") -> "Loaded":
        """The same model with another layout, by name or file; with its own for None."""
        if layout is None:
            return self
        return self._replace(layout=_chosen(layout, self.tokenizer))


def load(
    name_or_path: str | Path,
    device: str = "cpu",
    dtype: str | torch.dtype | None = None,
    layout: str | Layout | None = None,
) -> Loaded:
    """(model, tokenizer, layout) of a shipped or fetched model, a folder or a model in the local Hugging Face cache.

    `dtype` None: float32 on the CPU, the checkpoint's own on an accelerator. `layout` None: the model's own
    (`layout_of`); else a `Layout`, or lab, released, chat or a JSON file. Nothing is downloaded. Raises BadInput,
    before any weight is read, for an unknown name, device, dtype or layout and for a checkpoint that is not whole. On
    the CPU, freed memory stays with the process from then on (`models.allocator`).
    """
    path, place, number = folder(name_or_path), device_of(device), _dtype(dtype)
    layouts.check(layout if isinstance(layout, str) else None)
    check(path)
    base = base_folder(path)
    tokenizer = _tokenizer(base)
    layout = layout_of(path, tokenizer) if layout is None else _chosen(layout, tokenizer)
    if number is None:
        number = torch.float32 if place.type == "cpu" else "auto"
    options: dict[str, Any] = {"dtype": number, "local_files_only": True, "output_loading_info": True}
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(base, **options)
    except UNREADABLE as problem:
        raise BadInput(f"{path} cannot be loaded as a causal language model: {_first_line(problem)}") from problem
    model, report = loaded
    lacking = sorted(report["missing_keys"]) + sorted(str(key) for key in report["mismatched_keys"])
    if lacking:
        raise BadInput(
            f"{path} is not whole: {len(lacking)} weights are missing or of the wrong shape, first {lacking[0]}"
        )
    if adapters.is_adapter(path):
        _adapter(path).merge(model)
    if place.type == "cpu":
        keep_freed()
    return Loaded(model.to(place).eval(), tokenizer, layout)


def names() -> list[str]:
    """Names of the models that are shipped or fetched."""
    return [*assets.models(), *fetched.names()]


def folder(name_or_path: str | Path) -> Path:
    """The folder of a path, of a shipped or fetched model or of an `owner/name` in the local Hugging Face cache."""
    if (path := Path(name_or_path)).is_dir():
        return path
    name = str(name_or_path)
    if name in assets.models():
        return assets.model_path(name)
    if name in fetched.CATALOGUE:
        return fetched.folder(name)
    try:
        if "/" in name:
            return Path(snapshot_download(name, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError, OSError):
        pass
    shipped = ", ".join(assets.models()) or "none"
    raise BadInput(
        f"unknown model {name!r}: allowed are a checkpoint folder, a shipped model ({shipped}), one that is fetched "
        f"({', '.join(fetched.CATALOGUE)}) or an owner/name that is already in the local Hugging Face cache"
    )


def device_of(name: str) -> torch.device:
    """The device of a name; BadInput for one that is unknown or not there."""
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise BadInput(f"unknown device {name!r}: allowed are cpu, cuda and cuda:N")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise BadInput(
            f"device {name!r} is not there: this machine has {torch.cuda.device_count()} CUDA devices; use cpu"
        )
    return device


def _dtype(dtype: str | torch.dtype | None) -> Any:
    if isinstance(dtype, str) and dtype not in DTYPES:
        raise BadInput(f"unknown dtype {dtype!r}: allowed are {', '.join(DTYPES)}")
    return DTYPES[dtype] if isinstance(dtype, str) else dtype


def check(path: Path) -> None:
    """Raises BadInput, naming the file, unless `path` holds a whole checkpoint: config, tokenizer and all weights.

    Weights are safetensors, in one file or in shards; the header of each is read and compared with the file's length.
    An adapter is whole where its base model is, and is the one that it was trained on.
    """
    if adapters.is_adapter(path):
        _check_weights(path / adapters.WEIGHTS)
        base = base_folder(path)
        check(base)
        _adapter(path).check_base(_shards(base))
        return
    config = _json(path / "config.json", "a checkpoint folder has config.json, a tokenizer and safetensors weights")
    if "model_type" not in config:
        raise BadInput(f"{path / 'config.json'} has no model_type")
    if not any((path / name).is_file() for name in TOKENIZERS):
        raise BadInput(f"{path} has no tokenizer: one of {', '.join(TOKENIZERS)} is needed")
    if (path / "tokenizer.json").is_file():
        _json(path / "tokenizer.json")
    for shard in _shards(path):
        _check_weights(shard)


def base_folder(path: Path) -> Path:
    """The folder with config, tokenizer and whole weights: `path` itself, or of an adapter that of its base model.

    Raises BadInput, naming the command that fetches it, for a base model that is not there.
    """
    if not adapters.is_adapter(path):
        return path
    name = _adapter(path).base
    try:
        base = folder(name)
    except BadInput as problem:
        how = f"workbench models get {name}" if re.fullmatch(r"[\w.-]+", name) else "copy or download it first"
        raise BadInput(f"{path} is an adapter of {name!r}, which is not here ({how}): {problem}") from None
    if adapters.is_adapter(base):
        raise BadInput(f"{path} is an adapter of {name!r}, which is an adapter too: a whole model is needed")
    return base


def weights_of(path: Path) -> list[Path]:
    """The safetensors files of a checkpoint folder; of an adapter those of its base model."""
    return _shards(base_folder(path))


def _adapter(path: Path) -> Adapter:
    declared = path / "workbench.json"
    about = _json(declared).get("adapter", {}) if declared.is_file() else {}
    if not isinstance(about, dict):
        raise BadInput(f"{declared}: adapter is {json.dumps(about)}, an object is needed")
    return Adapter.of(path, _json(path / adapters.CONFIG), about)


def _shards(path: Path) -> list[Path]:
    if (path / WEIGHTS).is_file():
        return [path / WEIGHTS]
    if not (path / INDEX).is_file():
        raise BadInput(f"{path} has no weights: {WEIGHTS} or {INDEX} with its shards is needed")
    index = _json(path / INDEX).get("weight_map")
    if not isinstance(index, dict) or not index:
        raise BadInput(f"{path / INDEX} has no weight_map")
    return [path / name for name in sorted(set(index.values()))]


def _check_weights(shard: Path) -> None:
    if not shard.is_file():
        raise BadInput(f"{shard} is missing: the checkpoint is not whole")
    try:
        with safe_open(shard, framework="pt") as weights:  # maps the file; compares header and length
            keys = list(weights.keys())
    except (SafetensorError, OSError) as problem:
        raise BadInput(f"{shard} is corrupt or half-written: {_first_line(problem)}") from None
    if not keys:
        raise BadInput(f"{shard} holds no weights")


def describe(path: Path) -> dict[str, Any]:
    """What a checkpoint is, from its files' headers: type, parameters, layers, context and layout.

    Of an adapter without its base model the context is None.
    """
    if adapters.is_adapter(path):
        return _describe_adapter(path)
    check(path)
    config, parameters = _json(path / "config.json"), 0
    for shard in _shards(path):
        with safe_open(shard, framework="pt") as weights:
            parameters += sum(prod(weights.get_slice(key).get_shape()) for key in weights.keys())  # noqa: SIM118
    return {
        "type": config["model_type"],
        "parameters": parameters,
        "layers": config.get("num_hidden_layers"),
        "context": config.get("max_position_embeddings"),
        "layout": layout_of(path).name,
        "note": note_of(path),
        "path": str(path),
    }


def _describe_adapter(path: Path) -> dict[str, Any]:
    _check_weights(path / adapters.WEIGHTS)
    about = _adapter(path).describe()
    try:
        context = _json(base_folder(path) / "config.json").get("max_position_embeddings")
    except BadInput:  # listed all the same
        context = None
    return about | {"context": context, "layout": layout_of(path).name, "note": note_of(path), "path": str(path)}


def layout_of(path: Path, tokenizer: PreTrainedTokenizerBase | None = None) -> Layout:
    """The prompt layout of a model folder: the first of these that is there.

    `workbench.json` ({"layout": {…}}), the base model's layout (of an adapter), the tokenizer's chat template
    (`data.chat_template`), the released one. The tokenizer is read where it is not given. Raises BadInput for a
    template that cannot hold passages.
    """
    if (file := path / "workbench.json").is_file():
        declared = _json(file)
        if not declared or not isinstance(declared.get("layout", {}), dict):
            raise BadInput(f"{file} has no layout object")
        if "layout" in declared:
            return Layout.from_json(declared["layout"])
    if adapters.is_adapter(path):
        return layout_of(base_folder(path), tokenizer)
    if tokenizer is None and _has_template(path):
        tokenizer = _tokenizer(path)
    return chat_template.layout(tokenizer) if tokenizer and tokenizer.chat_template else RELEASED


def _chosen(layout: str | Layout, tokenizer: PreTrainedTokenizerBase) -> Layout:
    return layout if isinstance(layout, Layout) else chat_template.layout_named(layout, tokenizer)


def _has_template(path: Path) -> bool:
    """Whether a folder has a chat template; no tokenizer is read."""
    config = path / "tokenizer_config.json"
    inside = config.is_file() and "chat_template" in _json(config)
    return inside or any((path / f"chat_template.{ending}").is_file() for ending in ("jinja", "json"))


def _tokenizer(path: Path) -> PreTrainedTokenizerBase:
    try:
        return AutoTokenizer.from_pretrained(path, local_files_only=True)
    except UNREADABLE as problem:
        raise BadInput(f"{path} has a tokenizer that cannot be loaded: {_first_line(problem)}") from problem


def note_of(name_or_path: str | Path) -> str:
    """What a model folder says of itself in `workbench.json` ({"note": "…"}), shown wherever its numbers are; "" else.

    "" also for a model that is in memory only.
    """
    try:
        declared = folder(name_or_path) / "workbench.json"
    except BadInput:
        return ""
    note = _json(declared).get("note", "") if declared.is_file() else ""
    if not isinstance(note, str):
        raise BadInput(f"{declared}: note is {json.dumps(note)}, a text is needed")
    return note


def _json(path: Path, hint: str = "the checkpoint is not whole") -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadInput(f"{path} is missing: {hint}") from None
    except (OSError, UnicodeDecodeError, JSONDecodeError) as problem:
        raise BadInput(f"{path} is corrupt or half-written: {_first_line(problem)}") from None
    if not isinstance(value, dict):
        raise BadInput(f"{path} is corrupt: an object is needed, not {type(value).__name__}")
    return value


def _first_line(problem: Exception) -> str:
    return next(iter(str(problem).splitlines()), type(problem).__name__)
