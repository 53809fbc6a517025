"""Served and replayed sessions, measured."""
