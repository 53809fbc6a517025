"""Llama, Qwen2, Qwen3, Mistral, Phi-3, OLMo-2, Gemma 3 and other families with neox RoPE."""

from typing import Any

pairing = "neox"

_YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4, "original_max_position_embeddings": 128}
_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "rope_theta": 5e5,
    "original_max_position_embeddings": 64,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "original_max_position_embeddings": 512,
    "short_factor": [1.0 + i / 8 for i in range(8)],
    "long_factor": [2.0] * 8,
}

_MIXED = {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}

TINY: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "llama3": {"model_type": "llama", "rope_parameters": _LLAMA3},
    "yarn": {"model_type": "llama", "rope_parameters": _YARN},
    "qwen2": {"model_type": "qwen2"},
    "qwen3": {"model_type": "qwen3"},
    "mistral": {"model_type": "mistral", "sliding_window": None},
    "mistral-window": {"model_type": "mistral", "sliding_window": 16},
    "phi3": {"model_type": "phi3", "bos_token_id": 1, "eos_token_id": 1, "partial_rotary_factor": 0.5},
    "phi3-longrope": {"model_type": "phi3", "bos_token_id": 1, "eos_token_id": 1, "rope_parameters": _LONGROPE},
    "olmo2": {"model_type": "olmo2", "eos_token_id": 1},
    "olmo3": {"model_type": "olmo3", "eos_token_id": 1, **_MIXED},
    "gemma3": {"model_type": "gemma3_text", **_MIXED},
}
