"""The report: executed notebooks as pages, with an index."""
