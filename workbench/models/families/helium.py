"""Helium: RoPE is interleaved: neighbouring channels form a plane."""

from typing import Any

import torch

pairing = "interleaved"


def inv_freq(decoder: Any, layer: int) -> torch.Tensor:
    """Return the inverse frequencies [D / 2], the same for every layer."""
    return decoder.rotary_emb.inv_freq


TINY: dict[str, dict[str, Any]] = {"helium": {"model_type": "helium", "bos_token_id": 1, "eos_token_id": 1}}
