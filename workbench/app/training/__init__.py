"""Commands that train: `workbench tune`, `workbench lab`."""
