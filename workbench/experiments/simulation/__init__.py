"""Simulated workloads, caches and machines."""
