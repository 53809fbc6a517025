"""GLM-4 (first release): RoPE is interleaved: neighbouring channels form a plane, and only half of them."""

from typing import Any

pairing = "interleaved"
TINY: dict[str, dict[str, Any]] = {"glm": {"model_type": "glm", "eos_token_id": 1}}
