"""Parts that kernels share."""
