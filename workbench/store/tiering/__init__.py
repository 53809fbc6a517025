"""Stores of several tiers: GPU pages, host memory and disk, with promotion and eviction."""
