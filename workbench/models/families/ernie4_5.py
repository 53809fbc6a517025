"""ERNIE 4.5: interleaved RoPE, adjacent channels form a plane."""

from typing import Any

pairing = "interleaved"
TINY: dict[str, dict[str, Any]] = {"ernie4_5": {"model_type": "ernie4_5", "bos_token_id": 1, "eos_token_id": 1}}
