"""Figures of prompts token by token: selected, recomputed, reused."""
