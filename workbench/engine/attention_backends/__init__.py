"""Attention backends of one layer, and how one is chosen."""
