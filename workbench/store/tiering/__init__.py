"""Tiered stores: GPU pages, host memory and disk, with promotion and eviction."""
