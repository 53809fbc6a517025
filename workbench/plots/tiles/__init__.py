"""Figures of selected tiles."""
