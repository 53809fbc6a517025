"""What notebooks call, and running them without a person."""

from workbench.app.notebooks import quick_jsonschema  # noqa: F401  (before anything here imports nbformat)
