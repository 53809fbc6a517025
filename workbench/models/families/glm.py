"""GLM-4 (first release): neighbouring channels turn together, and only half of them."""

from typing import Any

import torch

pairing = "interleaved"


def inv_freq(decoder: Any, layer: int) -> torch.Tensor:
    return decoder.rotary_emb.inv_freq


TINY: dict[str, dict[str, Any]] = {"glm": {"model_type": "glm", "eos_token_id": 1}}
