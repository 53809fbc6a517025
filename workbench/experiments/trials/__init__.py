"""Trials: one model, one data set, one method; records, comparison, verification."""
