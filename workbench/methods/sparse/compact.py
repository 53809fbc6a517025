"""CompactAttention: the selection of another method, as one list of KV pages per group of heads."""

from dataclasses import dataclass, field

from torch import Tensor

from workbench.core.errors import BadInput
from workbench.core.tiling.tiles import grid_of
from workbench.engine.attention_backends import choice as backends
from workbench.methods.sparse import HERE, OVER, Grid, OverSparse, Site, Sparse, Tiles, count, on_gpu


@dataclass(frozen=True)
class Compact(OverSparse):
    r"""Union of the pages that any query block of the chunk and any head of an execution group selects.

    *Follows the paper.*

    The chunk itself is kept completely; the union only adds pages (section 3.2).

    over    the inner method, or its spec: `compact(over=bfla(mass=0.95))`. It first selects per query block and head;
            a selected token counts as its whole page
    heads   query heads per execution group; 0: the GQA group, of any size (the paper's default). 4 splits larger
            groups, as the paper's implementation does; it must divide them

    `Tiles.pages` and `tiles.pages` convert the selection to a page table for a paged kernel.

    With $K_{bh}$ the selection of query block $b$ and head $h$, for the chunk $C$ and an execution group $H$:

    $$\text{pages}(C, H) = \bigcup_{b \in C} \bigcup_{h \in H} K_{bh}$$
    """

    over: Sparse | str = field(default="flash_prefill(alpha=0.06)", metadata=OVER)
    heads: int = count(0)

    def group(self, heads: int, kv_heads: int) -> int:
        """Return the query heads per execution group of a model. Raises BadInput unless they divide its GQA group."""
        gqa = heads // kv_heads
        group = min(self.heads or gqa, gqa)
        if gqa % group:
            raise BadInput(f"heads is {self.heads}: it does not divide the {gqa} query heads of a KV head")
        return group

    def __call__(self, queries: Tensor, keys: Tensor, rows: Tensor, site: Site = HERE) -> Tiles:
        return self.merged(self.inner(queries, keys, rows, site), len(keys), rows, keys.shape[1], site.replayed)

    def merged(self, choice: Tiles, kv_heads: int, rows: Tensor, length: int, replayed: bool = False) -> Tiles:
        """Return the union of `choice`, for `rows` over `length` keys, with the chunk itself."""
        kept, rows = choice.paged().kept, rows.to(choice.kept.device)
        group = self.group(len(kept), kv_heads)
        if on_gpu(kept):
            union = backends.kernel("_select.unite").launch(kept, rows, choice.size, group)
        else:
            union = grid_of(rows, length, choice.size, replayed).union_over_groups(kept, group)
        return Tiles(union, choice.size, shared=group, alike=True)

    def choose(self, queries: Tensor, keys: Tensor, grid: Grid, site: Site) -> Tiles:
        return self(queries, keys, grid.rows, site)
