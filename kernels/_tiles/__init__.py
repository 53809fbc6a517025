"""Attention over selected tiles."""
