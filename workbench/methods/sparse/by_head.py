"""Per-head policies in one call: dense, streaming, or another method (as in Block-Sparse-Attention)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from workbench.core.errors import BadInput
from workbench.methods.registry import option_where
from workbench.methods.sparse import Grid, OverSparse, Site, Tiles, count

DENSE, STREAMING, CHOOSING = "dsc"


def _kinds(value: object) -> bool:
    return isinstance(value, str) and value != "" and {*value} <= {DENSE, STREAMING, CHOOSING}


@dataclass(frozen=True)
class ByHead(OverSparse):
    r"""Assign a kind to each query head, as DuoAttention does; the pattern repeats over all heads of all layers.

    kinds   one letter per head: d dense, s streaming (sink and window), c selected by `over`
    over    the method for heads of kind c, or its spec: `by_head(kinds=ddsc, over=bfla)`
    sink    number of first tiles that streaming heads keep
    local   number of tiles before a row's own that streaming heads keep

    *Follows released code: `head_mask_type` of mit-han-lab/Block-Sparse-Attention (0 dense, below 0 streaming, above 0
    a mask of blocks).* The kinds are given, not learned.

    For head $h$ with the selection $C$ of `over`, a tile $(i, j)$ is kept if

    $$h \text{ dense}; \quad h \text{ streams}: j < \text{sink} \lor i - \text{local} \le j; \quad
    h \text{ chooses}: (i, j) \in C_h$$
    """

    kinds: str = option_where("ds", "a letter a head, of d, s and c", _kinds)
    sink: int = count(1)
    local: int = count(8)

    @property
    def rows_together(self) -> int:
        return self.inner.rows_together

    @property
    def replays(self) -> bool:
        return False  # head kinds are indexed on the host

    def choose(self, queries: Tensor, keys: Tensor, grid: Grid, site: Site) -> Tiles:
        heads = len(queries)
        if len(self.kinds) > heads:
            raise BadInput(f"kinds is {self.kinds!r}: {len(self.kinds)} letters for {heads} query heads")
        kinds = (self.kinds * heads)[:heads]
        streams = (grid.columns < self.sink) | grid.near_tiles(self.local)
        kept = torch.ones(heads, *grid.shape, dtype=torch.bool, device=keys.device)
        kept[[kind == STREAMING for kind in kinds]] = streams
        columns = None
        if CHOOSING in kinds:
            chosen, choosing = self.inner(queries, keys, grid.rows, site), [kind == CHOOSING for kind in kinds]
            kept[choosing] = chosen.kept[choosing]
            if chosen.columns is not None:
                columns = chosen.columns & torch.tensor(choosing, device=keys.device)[:, None]
        return grid.tiles(kept, heads, columns)

    def operations(self, heads: int, rows: int, length: int, width: int) -> int:
        return super().operations(heads, rows, length, width) if CHOOSING in self.kinds else 0
