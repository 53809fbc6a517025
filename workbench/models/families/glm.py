"""GLM-4 (first release): RoPE is interleaved: neighbouring channels form a plane, and only half of them."""

from typing import Any

import torch

pairing = "interleaved"


def inv_freq(decoder: Any, layer: int) -> torch.Tensor:
    """Return the inverse frequencies [D / 2], the same for every layer."""
    return decoder.rotary_emb.inv_freq


TINY: dict[str, dict[str, Any]] = {"glm": {"model_type": "glm", "eos_token_id": 1}}
