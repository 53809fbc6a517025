"""Offsets of similar earlier passages, added to cached passages (`methods/correct/kvcomm.py`)."""
