"""Paged KV: the pool, its allocator, page tables, and prompts over pages."""
