"""Figures of results, trials, stores and serving."""
