"""Causal attention over selected key tiles, or dense, for a whole prompt, a chunk of it, or scattered tokens.

    tile_attention(q [B, Hq, R, D], keys [B, H, T, D], values [B, H, T, D], rows [B, R], indptr, indices, size, queries,
                   scale) -> [B, Hq, R, D], same dtype

Row r of request b is at position `rows[b, r]` (rising; -1 at the end for padding) and attends to the keys of its
selected tiles, `size` tokens each, up to that position. List n, `indices[indptr[n] : indptr[n + 1]]`, has the rising
tile indices for `queries` rows (a query tile) of one or several neighbouring heads; n is ordered by request, group of
heads, query tile. `lists` builds them from a selection [B, G, I, J] (bool). Without lists the attention is dense. The
default scale is 1/sqrt(D).

Sparse methods (BFLA, SeerAttention, XAttention, …) select the tiles. The output of a row without keys is 0.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from workbench.kernels._shared.attention import Config
from workbench.kernels._shared.triton_import import need_triton
from workbench.kernels._tiles import triton_kernel as _tiles_triton
from workbench.kernels._tiles.reference import pool, random_choice, reference
from workbench.kernels._tiles.triton_kernel import lists

__all__ = ["cases", "launch", "lists", "reference"]


def launch(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    rows: Tensor,
    indptr: Tensor | None = None,
    indices: Tensor | None = None,
    size: int = 128,
    queries: int = 128,
    scale: float | None = None,
    *,
    config: Config | None = None,
) -> Tensor:
    """Run the Triton kernel on CUDA tensors, or on CPU tensors in fp32 or fp16 under TRITON_INTERPRET=1."""
    need_triton("tile_attention")
    return _tiles_triton.launch(config, q, keys, values, rows, indptr, indices, size, queries, scale)


def cases(device: str = "cpu", dtype: torch.dtype = torch.float32) -> Iterator[tuple[Any, ...]]:
    """Yield arguments to compare `launch` with `reference`: dense, sparse; whole, chunked, scattered; odd lengths."""
    for seed, (heads, count, length, width, size, queries, groups, share) in enumerate(
        (
            ((4, 2), 77, 77, 64, 32, 32, 4, 0.4),  # a whole prompt, one list per head
            ((4, 2), 40, 101, 128, 32, 16, 2, 0.3),  # a chunk at its end, one list per KV head
            ((3, 1), 33, 70, 80, 64, 32, 1, 0.5),  # one list for all heads
            ((2, 2), 19, 50, 96, 16, 64, 2, 0.2),  # one list for all rows
            ((2, 1), 21, 64, 256, 32, 32, 2, 0.0),  # own tiles only
            ((4, 2), 300, 300, 128, 64, 64, 2, 0.4),  # odd number of query tiles of 64 rows
            ((2, 1), 150, 333, 64, 32, 64, 2, 0.3),  # narrow key tiles for them
            ((2, 2), 70, 200, 256, 128, 64, 1, 0.3),  # wide ones, wide heads
        )
    ):
        for batch in (1, 2) if seed < 2 or seed == 6 else (1,):
            arguments = pool(seed, batch, heads, count, length, width, device, dtype)
            rows = torch.arange(length - count, length).expand(batch, count).clone()
            if batch == 2:  # the second request has fewer rows, and they are scattered
                scattered = torch.arange(1, length, 3)[:count]
                rows[1] = -1
                rows[1, : len(scattered)] = scattered
            tiles = -(-count // queries)
            kept = random_choice(seed, batch, groups, tiles, length, size, share, rows, queries)
            yield *arguments, rows.to(device), *lists(kept.to(device)), size, queries
            yield *arguments, rows.to(device)
    empty = torch.zeros(1, 2, 1, 3, dtype=torch.bool, device=device)  # lists without a tile
    arguments = pool(9, 1, (2, 2), 5, 40, 64, device, dtype)
    yield *arguments, torch.arange(35, 40, device=device)[None], *lists(empty), 16, 16
