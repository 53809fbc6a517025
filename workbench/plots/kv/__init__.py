"""Figures of KV deviation and of positions."""
