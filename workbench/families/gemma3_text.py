"""Gemma 3: sliding and full layers rotate at different speeds."""

from typing import Any

import torch

pairing = "halves"


def inv_freq(decoder: Any, layer: int) -> torch.Tensor:
    return getattr(decoder.rotary_emb, f"{decoder.config.layer_types[layer]}_inv_freq")


TINY: dict[str, dict[str, Any]] = {
    "gemma3": {
        "model_type": "gemma3_text",
        "sliding_window": 16,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    }
}
