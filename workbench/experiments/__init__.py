"""Measured comparisons: trials, sweeps, sessions, times."""
