"""Decoder layers run with fewer kernels or calls than transformers runs them."""
