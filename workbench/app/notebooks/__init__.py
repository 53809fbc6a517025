"""Helpers of notebooks, and running notebooks in batch."""

from workbench.app.notebooks import quick_jsonschema  # noqa: F401  (before anything here imports nbformat)
