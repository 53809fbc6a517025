"""Tensors and token ids, without a model: blocks, KV, masks, tiles, plans."""

from typing import Literal

Positions = Literal["re-encoded", "naive", "shared"]  # of reused keys
