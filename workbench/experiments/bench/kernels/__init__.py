"""Workloads of kernels, and checks against their references."""
