"""CUDA graphs over batches of fixed shape: shape buckets, captured steps, the `Runner`."""
