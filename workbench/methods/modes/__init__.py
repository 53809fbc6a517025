"""Methods, one file per mode, named after it."""
