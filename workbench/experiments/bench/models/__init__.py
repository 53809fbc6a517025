"""Whole-model benchmarks compared with stock transformers."""
