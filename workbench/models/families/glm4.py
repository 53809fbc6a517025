"""GLM-4 (0414): RoPE is interleaved: neighbouring channels form a plane, and only half of them."""

from typing import Any

pairing = "interleaved"
TINY: dict[str, dict[str, Any]] = {"glm4": {"model_type": "glm4", "eos_token_id": 1}}
