"""Parts of the kernels that select blocks."""
