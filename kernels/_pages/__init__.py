"""Attention over pages of a KV cache."""
