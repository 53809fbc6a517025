"""Passages that move as similar ones moved before (`methods/correct/kvcomm.py`)."""
