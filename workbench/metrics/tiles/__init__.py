"""Measures of block-sparse attention."""
