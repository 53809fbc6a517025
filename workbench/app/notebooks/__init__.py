"""Helpers for notebooks, and batch runs of notebooks."""

from workbench.app.notebooks import quick_jsonschema  # noqa: F401  (before anything here imports nbformat)
