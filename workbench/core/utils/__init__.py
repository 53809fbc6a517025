"""Helpers that have nothing to do with attention: files, checks of values, processes, progress, HTML views."""
