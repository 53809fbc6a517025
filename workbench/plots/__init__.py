"""Figures: pure functions from numbers to a `plotly.graph_objects.Figure`."""
