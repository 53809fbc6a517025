"""Sparse choices as the rising lists that attention kernels read: tiles of a query tile, or pages of a group of heads.

On a GPU the lists are made there (`_tiles_lists`): the host waits for nothing, and `indices` is unwritten behind the
last list. Elsewhere torch makes them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

import workbench.kernels._tiles.lists as _tiles_lists
from workbench.core.errors import BadInput
from workbench.core.tiling.tiles import Tiles, ragged


@dataclass(frozen=True)
class PageLists:
    """What a paged attention kernel is told, for a batch (CompactAttention, section 3.3).

    Keys [B, Hkv, L, D] are read in place as [B · Hkv · L / page, page, 1, D]: page j of KV head h of request b is
    number (b · Hkv + h) · L / page + j. One row of the table serves `heads` query heads of one request; rows go by
    request, KV head, execution group.
    """

    indptr: Tensor  # [B · Hkv · groups + 1] int32
    indices: Tensor  # [pages read] int32, rising within a row
    size: int  # tokens of a page
    heads: int  # query heads of an execution group


def tile_lists(tiles: Tiles, rows: int, length: int) -> tuple[Tensor, Tensor]:
    """Make rising lists of key tiles for `rows` over `length` keys: (indptr [N + 1], indices), int32.

    N goes by group of `tiles.shared` heads, then query tile. BadInput where the tiles do not cover rows and keys.
    """
    return lists_of(tiles.covering(rows, length))


def lists_of(kept: Tensor, first: int = 0, share: int = 1) -> tuple[Tensor, Tensor]:
    """Make lists of [G, I, J] bool: (indptr [G · I + 1], indices), int32. List n counts from n // share · first."""
    on_gpu = kept.is_cuda and kept.numel() and _tiles_lists.triton is not None
    return _tiles_lists.launch(kept, first, share) if on_gpu else ragged(kept, first, share)


def pages(choices: Sequence[Tiles], kv_heads: int, heads: int, capacity: int) -> PageLists:
    """Make the page table of a batch: the union of each request's choice over its rows and every `heads` query heads.

    `capacity`: pages that the cache holds for one KV head. BadInput where a choice does not fit the cache, or a group
    of `heads` would read two KV heads.
    """
    for choice in choices:
        group = choice.kept.shape[0] // kv_heads
        if choice.kept.shape[0] % kv_heads or group % heads:
            raise BadInput(
                f"{heads} heads cannot share a page list: {choice.kept.shape[0]} query heads read {kv_heads} KV heads"
            )
        if choice.kept.shape[2] > capacity:
            raise BadInput(f"a choice over {choice.kept.shape[2]} pages does not fit a cache of {capacity} for a head")
    kept = [choice.paged().kept for choice in choices]
    if len({x.shape for x in kept}) == 1:
        union = union_of(torch.stack(kept), heads)
    else:
        widest = max(x.shape[2] for x in kept)
        union = torch.cat([union_of(pad(x, (0, widest - x.shape[2]))[None], heads) for x in kept])
    return page_table(union, kv_heads, heads, capacity, choices[0].size)


def union_of(kept: Tensor, heads: int) -> Tensor:
    """[B, G, J] bool of choices [B, Hq, I, J]: what any query tile of any of `heads` neighbouring heads keeps."""
    return kept.unflatten(1, (-1, heads)).any((2, 3))


def page_table(union: Tensor, kv_heads: int, heads: int, capacity: int, size: int) -> PageLists:
    """Make a page table of unions [B, G, J] bool of groups of `heads` query heads, J at most `capacity`."""
    indptr, indices = lists_of(union.flatten(0, 1)[:, None], capacity, union.shape[1] // kv_heads)
    return PageLists(indptr, indices, size, heads)
