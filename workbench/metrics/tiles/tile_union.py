"""CompactAttention's union for one chunk: from the choice of every query tile to page lists."""

from dataclasses import dataclass

import torch
from torch import Tensor

from workbench.core.plan import Site
from workbench.core.tiling.tile_grid import Grid
from workbench.methods.sparse import Sparse
from workbench.methods.sparse.compact import Compact
from workbench.metrics.tiles.tile_states import States


@dataclass(frozen=True, eq=False)
class Union:
    """CompactAttention's steps for one chunk: query blocks of a head → the head → the execution group → its pages."""

    kept: Tensor  # [Hq, I, J] bool: the method's choice for every query tile of the chunk
    heads: Tensor  # [Hq, J] bool: for any query tile
    groups: Tensor  # [G, J] bool: for any head of the group
    pages: Tensor  # [G, J] bool: with the chunk itself, the last step
    own: Tensor  # [J] bool: pages of the chunk
    pairs: Tensor  # [I, J] int64: causal pairs (row, key)
    indptr: Tensor  # [G + 1] int32
    indices: Tensor  # int32
    first: int  # position of the first row
    size: int
    kv_heads: int

    @property
    def group(self) -> int:
        """Query heads of an execution group."""
        return len(self.heads) // len(self.groups)

    def densities(self) -> list[float]:
        """Share of the causal pairs after the choice, each union, and the chunk in whole; mean over heads."""
        steps = [self.kept, self.heads[:, None], self.groups[:, None], self.pages[:, None]]
        return [float((step * self.pairs).sum() / (self.pairs.sum() * len(step))) for step in steps]


def union(states: States, layer: int, method: Sparse, rows: slice, heads: int = 0) -> Union:
    """Choose with `method` for the chunk `rows` of the prompt, and unite the choice into page lists.

    `heads` query heads share a page list (0: a GQA group); CompactAttention brings its own method and group.
    """
    if isinstance(method, Compact):
        heads = method.group(states.heads, states.kv_heads)
        method = method.inner
    queries, keys = states.queries[layer][:, rows], states.keys[layer][:, : rows.stop]
    at = torch.arange(rows.start, rows.stop, device=keys.device)
    tiles = method(queries, keys, at, Site(layer, len(states))).paged()
    group, grid = heads or len(queries) // len(keys), Grid(at, rows.stop, tiles.size)
    kept, own = tiles.kept & grid.causal, grid.own.any(0)
    by_head = tiles.over_queries().kept[:, 0]
    by_group = tiles.union(group).kept[::group, 0]
    pages = by_group | own
    indptr, indices = grid.tiles(pages.repeat_interleave(group, 0)[:, None].expand_as(kept), len(kept)).pages(group)
    return Union(kept, by_head, by_group, pages, own, grid.pairs(), indptr, indices, rows.start, tiles.size, len(keys))
