"""Shared parts of kernels."""
