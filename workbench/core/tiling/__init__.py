"""Tiles of queries and keys: the grid, scores of pairs of tiles, and which tiles are selected."""
