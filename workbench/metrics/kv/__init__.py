"""Measures of cached keys and values against those of full attention."""
