"""Judge the claims of papers on any results."""
