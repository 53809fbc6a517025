"""Records and tensors to plotly figures, one figure per file."""
