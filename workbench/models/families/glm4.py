"""GLM-4 (0414): interleaved RoPE on half of the channels, adjacent channels form a plane."""

from typing import Any

pairing = "interleaved"
TINY: dict[str, dict[str, Any]] = {"glm4": {"model_type": "glm4", "eos_token_id": 1}}
