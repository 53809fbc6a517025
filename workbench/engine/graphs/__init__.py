"""CUDA graphs over batches of fixed shape: buckets of shapes, captured steps, the `Runner`."""
