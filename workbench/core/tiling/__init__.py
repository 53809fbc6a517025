"""Tiles of rows and keys: the grid, scores of blocks, and which tiles are selected."""
