"""CUDA graphs over batches of fixed shape: buckets, captured steps, the `Runner`."""
