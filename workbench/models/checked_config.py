"""Check a checkpoint before its weights are loaded: its configuration and the headers of its files.

No code and no pickle of a checkpoint is run: remote code is disabled, weights are safetensors.
"""

import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

from workbench.core.errors import BadInput, format_value, shorten
from workbench.core.utils import annotations

SIZES = ["hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim"]
SIZES += ["vocab_size", "intermediate_size", "max_position_embeddings"]
FORMATS = ("F64", "F32", "F16", "BF16")  # supported dtypes of weights, by their names in safetensors
OWN_ATTENTION = ("eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention")  # accepted, not used
DTYPES = ("float32", "bfloat16", "float16", "float64", "auto")
LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")


def config_of(path: Path, declared: Mapping[str, Any]) -> PreTrainedConfig:
    """Return the configuration of a checkpoint folder; `declared` is the content of its config.json.

    Raises BadInput for a field of a wrong type, a size under 1, rotary parameters that are empty or not numbers, a
    quantisation or attention implementation unknown to transformers, and a type that needs remote code.
    """
    file = path / "config.json"
    _words(file, declared)
    _quantisation(file, declared)
    try:
        config = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
        decoder = config.get_text_config(decoder=True)
    except Exception as problem:  # each type has its own class, which may raise anything
        raise BadInput(f"{file} cannot be used: {reason(problem)}") from problem
    for name in SIZES:
        value = getattr(decoder, name, None)
        if (
            value is not None
            and (not annotations.fits_annotation(value, int) or value < 1)
            and not isinstance(value, list)
        ):
            raise BadInput(f"{file}: {name} is {format_value(value)}, a whole number of at least 1 is needed")
    for name, value in vars(decoder).items():
        if isinstance(value, float) and not math.isfinite(value):
            raise BadInput(f"{file}: {name} is {value}, a finite number is needed")
    _rotary(file, declared, decoder)
    return config


def check_headers(config: PreTrainedConfig, path: Path, shards: Iterable[Path]) -> None:
    """Raise BadInput if the headers of the weight files do not fit the configuration.

    Checked are the number of layers, weights in two files, weights that are integers or in a scaled format that
    transformers would not dequantise, and a declared scaled format that the files do not have.
    """
    decoder = config.get_text_config(decoder=True)
    numbers, layers = set[int](), getattr(decoder, "num_hidden_layers", None)
    ignored, forms, file_of = _ignored(config), set[str](), dict[str, Path]()
    for shard in shards:
        with safe_open(shard, framework="pt") as file:
            for key in sorted(file.keys()):
                form = file.get_slice(key).get_dtype()
                forms.add(form)
                if (other := file_of.setdefault(key, shard)) != shard:
                    raise BadInput(f"{path}: {shorten(key)} stands in two files, {other.name} and {shard.name}")
                if key.endswith(".weight") and form not in FORMATS and not hasattr(config, "quantization_config"):
                    raise BadInput(f"{shard} holds {shorten(key)} as {form}: allowed are {', '.join(FORMATS)}")
                if not any(re.search(pattern, key) for pattern in ignored):
                    numbers |= {int(number) for number in LAYER.findall(key)}
    settings = getattr(config, "quantization_config", None)
    if settings and _method(settings) == "fp8" and not any(form.startswith("F8") for form in forms):
        raise BadInput(f"{path}: config.json says that weights are fp8 (quantization_config), they are {sorted(forms)}")
    if layers and numbers and max(numbers) + 1 != layers and not _is_composed(config):
        raise BadInput(
            f"{path} is not whole: config.json names {layers} layers (num_hidden_layers), the weights are those of "
            f"{max(numbers) + 1}"
        )


def check_loaded(path: Path, model: Any, report: Mapping[str, Any]) -> str:
    """Raise BadInput for missing, unused or non-finite weights; return a warning about harmless unused ones, or ""."""
    lacking = sorted(report["missing_keys"]) + sorted(str(key) for key in report["mismatched_keys"])
    if lacking:
        first = shorten(lacking[0])
        raise BadInput(f"{path} is not whole: {len(lacking)} weights are missing or of the wrong shape, first {first}")
    unused = sorted(map(str, report.get("unexpected_keys", ())))
    modules = {name for name, _ in model.named_modules()}
    if counted := [key for key in unused if LAYER.search(key) or key.rpartition(".")[0] in modules]:
        raise BadInput(
            f"{path} holds {len(counted)} weights that its config.json has no place for, first {shorten(counted[0])}: "
            "the model would compute something else"
        )
    for name, weight in model.named_parameters():
        if (
            weight.is_floating_point()
            and weight.numel()
            and not all(map(math.isfinite, torch.stack(weight.detach().aminmax()).tolist()))
        ):
            raise BadInput(f"{path} is damaged: {name} holds infinities or nan")
    return f"{path}: {len(unused)} weights are left out, first {shorten(unused[0])}" if unused else ""


def is_blank(model: Any) -> bool:
    """Return whether the first and last row of every matrix are zeros, as in an unfilled weight file."""
    matrices = [weight for weight in model.parameters() if weight.ndim > 1 and weight.numel()]
    return bool(matrices) and not any(bool(weight[0].any() or weight[-1].any()) for weight in matrices)


def reason(problem: BaseException) -> str:
    """Return an exception's message on one line."""
    return " ".join(str(problem).split())[:300] or type(problem).__name__


def _words(file: Path, declared: Mapping[str, Any]) -> None:
    """Raise BadInput for an unknown attention implementation or an unsupported dtype."""
    named = dict.fromkeys(("attn_implementation", "_attn_implementation"), OWN_ATTENTION)
    for name, allowed in (named | dict.fromkeys(("dtype", "torch_dtype"), DTYPES)).items():
        value = declared.get(name)
        if value is not None and not isinstance(value, dict) and value not in allowed:
            raise BadInput(f"{file}: {name} is {format_value(value)}: allowed are {', '.join(allowed)}")


def _quantisation(file: Path, declared: Mapping[str, Any]) -> None:
    if (settings := declared.get("quantization_config")) is None:
        return
    method = _method(settings)
    if not isinstance(method, str) or method not in AUTO_QUANTIZATION_CONFIG_MAPPING:
        known = ", ".join(sorted(AUTO_QUANTIZATION_CONFIG_MAPPING))
        raise BadInput(
            f"{file}: the quantisation {format_value(method)} is not known to transformers: allowed are {known}"
        )


def _method(settings: Any) -> Any:
    """Return the name of a quantisation from its settings, a dictionary or a transformers object."""
    if isinstance(settings, dict):
        return settings.get("quant_method")
    method = getattr(settings, "quant_method", settings)
    return getattr(method, "value", method)


def _rotary(file: Path, declared: Mapping[str, Any], decoder: Any) -> None:
    rope = getattr(decoder, "rope_parameters", None)
    if not isinstance(rope, dict) or not rope:
        return
    inner = declared.get("text_config")
    for fields in (declared, inner if isinstance(inner, dict) else {}):
        table = fields.get("rope_parameters", fields)
        if "rope_theta" not in fields and not (table is fields or _has_theta(table)):
            raise BadInput(f"{file}: rope_parameters is {format_value(table)}, rope_theta is needed")
    for table in [each for each in rope.values() if isinstance(each, dict)] or [rope]:
        for name in ("rope_theta", "factor", "partial_rotary_factor", "original_max_position_embeddings"):
            value = table.get(name)
            if value is not None and not (annotations.fits_annotation(value, float) and 0 < value < math.inf):
                raise BadInput(
                    f"{file}: {name} of its rotary positions is {format_value(value)}, a number above 0 is needed"
                )


def _has_theta(table: Any) -> bool:
    """Return whether rotary parameters, or those of every layer type, have a `rope_theta`."""
    if not isinstance(table, dict) or not table:
        return False
    kinds = [each for each in table.values() if isinstance(each, dict)]
    return "rope_theta" in table or (bool(kinds) and all("rope_theta" in each for each in kinds))


def _is_composed(config: PreTrainedConfig) -> bool:
    """Return whether a model has more than a decoder, such as a vision tower."""
    return config.get_text_config(decoder=True) is not config


def _ignored(config: PreTrainedConfig) -> list[str]:
    """Return the patterns of weights that the model class ignores, such as multi-token-prediction layers."""
    cls = AutoModelForCausalLM._model_mapping.get(type(config), None)
    return list(getattr(cls, "_keys_to_ignore_on_load_unexpected", None) or ())
