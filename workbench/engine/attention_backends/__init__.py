"""Attention backends of a layer, and how one is chosen."""
