"""Attention of a prompt chunk over selected pages of the cache, read in place (CompactAttention, section 3.3).

    page_list_attention(q [B, Hq, R, D], keys [B, H, L, D], values [B, H, L, D], rows [B, R], pages, scale)
        -> [B, Hq, R, D], same dtype

`pages` is built by `_pages.lists.pages` from selected tiles: one rising list of pages per request and group of
`pages.heads` query heads, in CSR form, shared by the rows of the chunk. Page j of KV head h of request b has number
(b · H + h) · L / page + j. Row r of request b is at position `rows[b, r]` (rising; -1 at the end for padding) and
attends to the keys of those pages up to that position, so the list must include the chunk's own pages. The default
scale is 1/sqrt(D).
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from workbench.core.errors import BadInput
from workbench.core.tiling.tiles import Tiles
from workbench.kernels._pages.lists import PageLists
from workbench.kernels._pages.lists import pages as pages_of
from workbench.kernels._shared.attention import Config
from workbench.kernels._shared.triton_import import need_triton
from workbench.kernels._tiles import triton_kernel as _tiles_triton
from workbench.kernels._tiles.reference import pool, random_choice
from workbench.kernels._tiles.reference import reference as over_tiles

__all__ = ["cases", "launch", "reference"]


def reference(
    q: Tensor, keys: Tensor, values: Tensor, rows: Tensor, pages: PageLists, scale: float | None = None
) -> Tensor:
    """Compute the result in torch, in the dtype of `q`."""
    return over_tiles(q, keys, values, rows, pages.indptr, pages.indices, pages.size, q.shape[2], scale, strided=True)


def launch(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    rows: Tensor,
    pages: PageLists,
    scale: float | None = None,
    *,
    config: Config | None = None,
) -> Tensor:
    """Run the Triton kernel on CUDA tensors, or on CPU tensors in fp32 or fp16 under TRITON_INTERPRET=1."""
    need_triton("page_list_attention")
    if keys.shape[2] % pages.size:
        raise BadInput(f"the cache has {keys.shape[2]} tokens per head: a multiple of {pages.size} is needed")
    return _tiles_triton.launch(
        config, q, keys, values, rows, pages.indptr, pages.indices, pages.size, q.shape[2], scale, strided=True
    )


def cases(device: str = "cpu", dtype: torch.dtype = torch.float32) -> Iterator[tuple[Any, ...]]:
    """Yield arguments to compare `launch` with `reference`: ragged lists, execution groups, odd chunks, one page."""
    for seed, (heads, group, count, length, width, size, share) in enumerate(
        (
            ((4, 2), 2, 33, 128, 128, 32, 0.4),
            ((8, 2), 2, 21, 96, 64, 16, 0.2),  # two execution groups per KV head
            ((3, 1), 3, 7, 64, 80, 64, 0.0),  # one page
            ((2, 2), 1, 40, 192, 96, 64, 0.5),
            ((2, 1), 2, 1, 64, 256, 32, 0.3),  # one row
        )
    ):
        q, keys, values = pool(seed, 2, heads, count, length, width, device, dtype)
        keys, values = keys.contiguous(), values.contiguous()
        first = torch.tensor([[length - count], [(length - count) // 2]])  # requests at different positions
        rows = first + torch.arange(count)
        kept = random_choice(seed, 2, heads[0], 1, length, size, share, rows, count)
        chosen = [Tiles(one.to(device), size) for one in kept]
        yield q, keys, values, rows.to(device), pages_of(chosen, heads[1], group, length // size)
