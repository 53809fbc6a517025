"""Tensors and token ids; no model: blocks, KV, masks, tiles, plans."""
