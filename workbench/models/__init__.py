"""Checkpoints and model families. What a user calls is importable from here: `models.load("lab-full")`."""

from workbench.models.loading import (
    DTYPES,
    Loaded,
    check,
    describe,
    device_of,
    folder,
    layout_of,
    load,
    names,
    note_of,
)

__all__ = ["DTYPES", "Loaded", "check", "describe", "device_of", "folder", "layout_of", "load", "names", "note_of"]
