"""Formats of stored weights (adapters, int8, deltas), and their layout in memory."""

SOFT_TOKENS = "soft_tokens.safetensors"  # written and read by `models.weights.soft_tokens`
