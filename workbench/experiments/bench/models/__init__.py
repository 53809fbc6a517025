"""Whole-model benchmarks beside stock transformers."""
