"""Many trials: grids, checks before the first, runs in parallel."""
