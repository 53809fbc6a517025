"""Figures of masks and attention weights."""
