"""Helium: interleaved RoPE, adjacent channels form a plane."""

from typing import Any

pairing = "interleaved"
TINY: dict[str, dict[str, Any]] = {"helium": {"model_type": "helium", "bos_token_id": 1, "eos_token_id": 1}}
