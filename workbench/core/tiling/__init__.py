"""Tiles of queries and keys: the grid, tile scores and tile selection."""
