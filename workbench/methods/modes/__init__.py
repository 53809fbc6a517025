"""Methods by the name of their mode: one file is one method."""
