"""Shared parts of the selection kernels."""
