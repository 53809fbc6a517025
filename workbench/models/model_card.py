"""Metadata of a model folder: prompt layout, note and size; weights are not read."""

import json
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from workbench.core.errors import BadInput
from workbench.data import chat_template
from workbench.data.layouts import CHAT, RELEASED, Layout
from workbench.models.checkpoints import (
    BASE,
    DIFFERENCE,
    SCALE,
    adapter_of,
    base_folder,
    check,
    check_weights,
    read_json,
    shards,
)
from workbench.models.model_names import folder
from workbench.models.weights import adapters

if TYPE_CHECKING:  # models are listed without torch
    from transformers import PreTrainedTokenizerBase

UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, SafetensorError)


def describe(path: Path) -> dict[str, Any]:
    """Return type, parameters, layers, context and layout of a checkpoint, from its config and file headers.

    The context is None for an adapter whose base model is missing.
    """
    if adapters.is_adapter(path):
        return _describe_adapter(path)
    check(path)
    config, parameters, source = read_json(path / "config.json"), 0, path
    if (path / DIFFERENCE).is_file():
        with safe_open(path / DIFFERENCE, framework="np") as difference:
            source = folder((difference.metadata() or {}).get(BASE, ""))
    for shard in shards(source):
        with safe_open(shard, framework="np") as weights:
            names = (key for key in sorted(weights.keys()) if not key.endswith(SCALE))
            parameters += sum(prod(weights.get_slice(key).get_shape()) for key in names)
    return {
        "type": config["model_type"],
        "parameters": parameters,
        "layers": config.get("num_hidden_layers"),
        "context": config.get("max_position_embeddings"),
        "layout": _layout_name(path),
        "note": note_of(path),
        "path": str(path),
    }


def _describe_adapter(path: Path) -> dict[str, Any]:
    for file in adapters.files_of(path):
        check_weights(file)
    about = adapter_of(path).describe()
    try:
        context = read_json(base_folder(path) / "config.json").get("max_position_embeddings")
    except BadInput:  # still listed
        context = None
    return about | {"context": context, "layout": _layout_name(path), "note": note_of(path), "path": str(path)}


def layout_of(path: Path, tokenizer: "PreTrainedTokenizerBase | None" = None) -> Layout:
    """Return the prompt layout of a model folder: the first of these that exists.

    `workbench.json` ({"layout": {…}}), the layout of an adapter's base model, the tokenizer's chat template
    (`data.chat_template`), the layout "released". The tokenizer is loaded if it is not given. Raises BadInput for a
    template without room for passages.
    """
    if (layout := _declared(path)) is not None:
        return layout
    if tokenizer is None and _has_template(base := base_folder(path)):
        tokenizer = tokenizer_of(base)
    return chat_template.layout(tokenizer) if tokenizer and tokenizer.chat_template else RELEASED


def _layout_name(path: Path) -> str:
    """Return the name of `layout_of`, without reading a tokenizer."""
    if (layout := _declared(path)) is not None:
        return layout.name
    return CHAT if _has_template(base_folder(path)) else RELEASED.name


def _declared(path: Path) -> Layout | None:
    """Return the layout declared in `workbench.json` of a model or its base model; None if there is none."""
    if (file := path / "workbench.json").is_file():
        declared = read_json(file)
        if not declared or not isinstance(declared.get("layout", {}), dict):
            raise BadInput(f"{file} has no layout object")
        if "layout" in declared:
            try:
                return Layout.from_json(declared["layout"])
            except BadInput as problem:
                raise BadInput(f"{file}: {problem}") from None
    return _declared(base_folder(path)) if adapters.is_adapter(path) else None


def _has_template(path: Path) -> bool:
    """Return whether a folder has a chat template, without reading a tokenizer."""
    config = path / "tokenizer_config.json"
    inside = config.is_file() and "chat_template" in read_json(config)
    return inside or any((path / f"chat_template.{ending}").is_file() for ending in ("jinja", "json"))


def tokenizer_of(path: Path) -> "PreTrainedTokenizerBase":
    """Load the tokenizer of a checkpoint folder without remote code. Raises BadInput if that fails.

    Its `model_max_length` is the model's context, if config.json has one.
    """
    from transformers import AutoTokenizer

    from workbench.models.checked_config import reason

    declared = read_json(path / "config.json") if (path / "config.json").is_file() else {}
    context = declared.get("max_position_embeddings")
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)
        tokenizer("a")
        if isinstance(context, int):
            tokenizer.model_max_length = context
        return tokenizer
    except Exception as problem:  # tokenizer classes may raise anything
        raise BadInput(f"{path} has a tokenizer that cannot be loaded: {reason(problem)}") from problem


def note_of(name_or_path: str | Path) -> str:
    """Return the note in `workbench.json` ({"note": "…"}), which is shown with the model's results.

    "" if there is none, and for a model that is only in memory.
    """
    try:
        declared = folder(name_or_path) / "workbench.json"
    except BadInput:
        return ""
    note = read_json(declared).get("note", "") if declared.is_file() else ""
    if not isinstance(note, str):
        raise BadInput(f"{declared}: note is {json.dumps(note)}, a text is needed")
    return note


def training_seed(name_or_path: str | Path) -> int | None:
    """Return the training seed recorded by `workbench lab train` or `workbench tune`; None if there is none."""
    path = folder(name_or_path)
    for name in ("training.json", "tuning.json"):
        if (path / name).is_file():
            seed = read_json(path / name).get("recipe", {}).get("seed")
            return seed if isinstance(seed, int) else None
    return None
