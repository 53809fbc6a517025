"""Figures: pure functions from numbers to a `plotly.graph_objects.Figure`, one figure per file."""
