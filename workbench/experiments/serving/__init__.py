"""Measurements of served and replayed sessions."""
