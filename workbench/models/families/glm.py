"""GLM-4 (first release): interleaved RoPE on half of the channels, adjacent channels form a plane."""

from typing import Any

pairing = "interleaved"
TINY: dict[str, dict[str, Any]] = {"glm": {"model_type": "glm", "eos_token_id": 1}}
