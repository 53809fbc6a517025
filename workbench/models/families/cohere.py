"""Command-R (Cohere): interleaved RoPE, adjacent channels form a plane."""

from typing import Any

pairing = "interleaved"
TINY: dict[str, dict[str, Any]] = {"cohere": {"model_type": "cohere", "bos_token_id": 1, "eos_token_id": 1}}
