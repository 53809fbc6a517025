"""Sweeps of many trials: grids, checks before the first trial, parallel runs."""
