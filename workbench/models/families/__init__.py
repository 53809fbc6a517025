"""RoPE conventions of model families (families/<model_type>.py, or standard), and checks for unsupported models.

A family file has `pairing` (which channels form a rotary plane), `TINY` (tiny configurations for tests, by name) and,
if its rotary tables are not where `inv_freq` looks, its own `inv_freq(decoder, layer)`.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from workbench.core.errors import Unsupported

# RoPE types whose tables do not depend on the prompt's length; "longrope" only if it cannot switch tables.
CONSTANT_ROPE = ("default", "linear", "llama3", "yarn", "proportional", "longrope")
SINKS = ("gpt_oss",)


def family(model: PreTrainedModel) -> Any:
    """Return the family module of a model by its `model_type`; `standard` if there is none."""
    name = f"{__name__}.{decoder_config(model.config).model_type}"
    return import_module(name if find_spec(name) else f"{__name__}.standard")


def decoder_config(config: PreTrainedConfig) -> PreTrainedConfig:
    """Return the configuration of the text decoder, also of a multimodal model."""
    return config.get_text_config(decoder=True)


def check(config: PreTrainedConfig) -> None:
    """Raise Unsupported for a configuration whose keys and values cannot be cached per block and moved."""
    reason = _layers(config) or _scores(config) or _positions(config)
    if reason:
        raise unsupported(config, reason)


def unsupported(config: PreTrainedConfig, reason: str) -> Unsupported:
    """Return (not raise) the error '<model> cannot be used: <reason>'."""
    name = config.name_or_path or config.model_type
    model = f"{name} ({config.model_type})" if name != config.model_type else name
    return Unsupported(f"{model} cannot be used: {reason}")


def check_modules(model: PreTrainedModel) -> None:
    """Raise Unsupported for modules without a language-model head or rotary table, or with learned attention sinks."""
    if model.get_output_embeddings() is None:
        raise unsupported(model.config, "it has no language-model head (load it with AutoModelForCausalLM)")
    if any(name.endswith((".sinks", ".sink")) for name, _ in model.named_parameters()):
        raise unsupported(model.config, "its attention sinks take part in every softmax, which is not implemented")
    if not hasattr(model.get_decoder(), "rotary_emb"):
        raise unsupported(model.config, "its positions are not rotary (RoPE), so cached keys cannot be moved")


def declared_window(config: PreTrainedConfig, layer: int) -> int | None:
    """Return a layer's sliding window in tokens from the configuration; None for full attention."""
    decoder = decoder_config(config)
    types = getattr(decoder, "layer_types", None)
    sliding = types[layer] == "sliding_attention" if types else getattr(decoder, "use_sliding_window", True)
    return getattr(decoder, "sliding_window", None) if sliding else None


def _layers(config: PreTrainedConfig) -> str | None:
    decoder = decoder_config(config)
    if config.is_encoder_decoder:
        return "it is an encoder-decoder, not a causal language model"
    if getattr(decoder, "kv_lora_rank", None):
        return "its latent attention (MLA) keeps a compressed vector per token instead of keys and values"
    types = getattr(decoder, "layer_types", None) or getattr(decoder, "layers_block_type", None) or ()
    if odd := sorted(set(types) - {"full_attention", "sliding_attention", "attention"}):
        return (
            f"its {', '.join(odd)} layers (linear, hybrid or chunked) keep no keys and values of every token for reuse"
        )
    if not getattr(decoder, "num_attention_heads", None):
        return "it has no attention layers, so there are no keys and values to reuse"
    return None


def _scores(config: PreTrainedConfig) -> str | None:
    decoder = decoder_config(config)
    if cap := getattr(decoder, "attn_logit_softcapping", None):
        return f"its attention scores are soft-capped (attn_logit_softcapping={cap}), which is not implemented"
    if decoder.model_type in SINKS:
        return "its attention sinks take part in every softmax, which is not implemented"
    return None


def _positions(config: PreTrainedConfig) -> str | None:
    decoder = decoder_config(config)
    rope = getattr(decoder, "rope_parameters", None)
    if not rope or getattr(decoder, "alibi", False):
        return "its positions are not rotary (RoPE), so cached keys cannot be moved"
    tables = [x for x in rope.values() if isinstance(x, dict)] or [rope]
    for table in tables:
        kind = table.get("rope_type", "default")
        if kind == "dynamic" or kind not in CONSTANT_ROPE:
            return f"its RoPE is {kind}: frequencies change with the prompt's length, so cached keys cannot be moved"
        if kind == "longrope" and _switches(decoder, table):
            return "its longrope RoPE switches frequencies beyond its original context, so cached keys cannot be moved"
    return None


def _switches(decoder: PreTrainedConfig, table: dict[str, Any]) -> bool:
    original = table.get("original_max_position_embeddings") or getattr(
        decoder, "original_max_position_embeddings", decoder.max_position_embeddings
    )
    return decoder.max_position_embeddings > original


def inv_freq(decoder: Any, layer: int) -> torch.Tensor:
    """Return the inverse frequencies [R/2] of a layer; Gemma 3 and OLMo-3 have a second table for sliding layers."""
    tables = decoder.rotary_emb
    kinds = getattr(decoder.config, "layer_types", None)
    return tables.inv_freq if hasattr(tables, "inv_freq") or not kinds else getattr(tables, f"{kinds[layer]}_inv_freq")


def inv_freqs(model: PreTrainedModel, layers: int) -> list[torch.Tensor]:
    """Return the rotary table of every layer, [R/2] each."""
    decoder, read = model.get_decoder(), getattr(family(model), "inv_freq", inv_freq)
    return [read(decoder, layer) for layer in range(layers)]
