"""Samples: the lab corpus and readers of real retrieval-augmented question files."""
