"""Queries and keys of a prompt, real or synthetic, with exact attention by tile, and CompactAttention's union."""

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import normalize
from transformers import PreTrainedModel

from workbench.core.errors import BadInput
from workbench.core.plan import Site
from workbench.core.tiling.tiles import Grid, mass
from workbench.engine.attention_maps import whole_layers
from workbench.engine.forward import all_rows, prefill_many
from workbench.methods.sparse import Sparse
from workbench.methods.sparse.compact import Compact
from workbench.metrics.tiles.sparsity import scale_queries


@dataclass(frozen=True, eq=False)
class States:
    """Queries and keys of a prompt under dense attention, for each layer in which a sparse method may select.

    Logits are queries · keys / sqrt(D).
    """

    queries: dict[int, Tensor]  #: [Hq, T, D]
    keys: dict[int, Tensor]  #: [H, T, D]
    _known: dict[tuple[int, ...], Tensor] = field(default_factory=dict, repr=False)

    @property
    def layers(self) -> list[int]:
        return list(self.keys)

    @property
    def heads(self) -> int:
        return len(next(iter(self.queries.values())))

    @property
    def kv_heads(self) -> int:
        return len(next(iter(self.keys.values())))

    def __len__(self) -> int:
        """Return the number of tokens of the prompt."""
        return next(iter(self.keys.values())).shape[1]

    def mass(self, layer: int, size: int) -> Tensor:
        """Return the exact attention [Hq, I, J] (fp32) by tiles of `size`, mean over a query tile's tokens; cached."""
        at = layer, size
        if at not in self._known:
            self._known[at] = mass(self.queries[layer], self.keys[layer], self.grid(size))
        return self._known[at]

    def mass_of(self, layer: int, head: int, rows: slice, size: int) -> Tensor:
        """Return [i, J] (fp32): `mass` of one head and the query tiles `rows` only; others are not computed."""
        at = layer, size, head, rows.start, rows.stop
        if at not in self._known:
            grid, keys = self.grid(size, rows), self.keys[layer][head // (self.heads // self.kv_heads)]
            self._known[at] = mass(self.queries[layer][head, grid.rows][None], keys[None], grid)[0]
        return self._known[at]

    def grid(self, size: int, rows: slice = slice(None)) -> Grid:
        """Return the grid of the whole prompt, or of some of its query tiles."""
        positions = torch.arange(len(self), device=next(iter(self.keys.values())).device)
        start, stop, _ = rows.indices(-(-len(self) // size))
        return Grid(positions[start * size : stop * size], len(self), size)


def dense_states(model: PreTrainedModel, tokens: Tensor) -> States:
    """Run one dense pass over token ids [T].

    Layers with a sliding window narrower than the prompt are left out. Raises BadInput if no layer is left.
    """
    layers = tuple(whole_layers(model, len(tokens)))
    if not layers:
        raise BadInput(f"every layer has a sliding window narrower than the {len(tokens)} tokens: nothing to choose")
    request = all_rows(model, tokens, return_queries=layers)
    (output,) = prefill_many(model, [request], logits_to_keep=1)
    return States({i: scale_queries(model, i, output) for i in layers}, {i: request.kv.keys[i] for i in layers})


def synthetic_states(length: int, seed: int = 0, topics: int = 12) -> States:
    """Return one layer of 2 query heads over 1 KV head of 64 channels, with the sparse attention of long prompts.

    Keys encode a topic (of stretches of 200 to 3,000 tokens), their position (slow rotations), and a common direction:
    the first 4 tokens (a sink) and about one in a thousand (a column). Head 0 attends to nearby tokens and the sink,
    head 1 to its topic and the columns.
    """
    draw = torch.Generator().manual_seed(seed)
    width = 48
    position = torch.arange(length)[:, None]
    subjects = normalize(torch.randn(topics, width, generator=draw), dim=-1)
    spans = torch.randint(200, 3001, (length // 200 + 1,), generator=draw)
    topic_of = torch.randint(topics, (len(spans),), generator=draw).repeat_interleave(spans)[:length]
    common = torch.zeros(length, 1)
    common[torch.rand(length, generator=draw) < 1e-3] = 0.6
    common[:4] = 1
    angles = position * torch.tensor([1 / 60, 1 / 150, 1 / 400, 1 / 1000, 1 / 2500, 1 / 6000, 1 / 15000])
    positions = torch.cat((angles.cos(), angles.sin()), 1)
    noise = 0.06 * torch.randn(3, length, width, generator=draw)
    keys = torch.cat((subjects[topic_of] + noise[0], positions, common, 1 - common), 1)
    ones = torch.ones(length, 1)
    near = torch.cat((8 * noise[1], 9 * positions, 60 * ones, 0 * ones), 1)
    topic = torch.cat((45 * (subjects[topic_of] + noise[2]), 2 * positions, 55 * ones, 0 * ones), 1)
    return States({0: torch.stack((near, topic))}, {0: keys[None]})


@dataclass(frozen=True, eq=False)
class Union:
    """Steps of CompactAttention for one chunk: query blocks of a head → the head → the execution group → its pages."""

    kept: Tensor  #: [Hq, I, J] bool: the method's selection for each query tile of the chunk
    heads: Tensor  #: [Hq, J] bool: union over query tiles
    groups: Tensor  #: [G, J] bool: union over the heads of a group
    pages: Tensor  #: [G, J] bool: with the chunk's own pages, the last step
    own: Tensor  #: [J] bool: pages of the chunk
    pairs: Tensor  #: [I, J] int64: causal (query, key) pairs
    indptr: Tensor  #: [G + 1] int32
    indices: Tensor  #: int32
    first: int  #: position of the first query
    size: int
    kv_heads: int

    @property
    def group(self) -> int:
        """Query heads of an execution group."""
        return len(self.heads) // len(self.groups)

    def densities(self) -> list[float]:
        """Return the share of causal pairs after the selection, each union, and the own pages; mean over heads."""
        steps = [self.kept, self.heads[:, None], self.groups[:, None], self.pages[:, None]]
        return [float((step * self.pairs).sum() / (self.pairs.sum() * len(step))) for step in steps]


def union(states: States, layer: int, method: Sparse, rows: slice, heads: int = 0) -> Union:
    """Select with `method` for the chunk `rows` of the prompt, and merge the selection into page lists.

    `heads` query heads share a page list (0: a GQA group); CompactAttention uses its own method and group.
    """
    if isinstance(method, Compact):
        heads = method.group(states.heads, states.kv_heads)
        method = method.inner
    queries, keys = states.queries[layer][:, rows], states.keys[layer][:, : rows.stop]
    at = torch.arange(rows.start, rows.stop, device=keys.device)
    tiles = method(queries, keys, at, Site(layer, len(states))).paged()
    group, grid = heads or len(queries) // len(keys), Grid(at, rows.stop, tiles.size)
    kept, own = tiles.kept & grid.causal, grid.own_tiles.any(0)
    by_head = tiles.over_queries().kept[:, 0]
    by_group = tiles.union(group).kept[::group, 0]
    pages = by_group | own
    indptr, indices = grid.tiles(pages.repeat_interleave(group, 0)[:, None].expand_as(kept), len(kept)).pages(group)
    return Union(kept, by_head, by_group, pages, own, grid.pairs(), indptr, indices, rows.start, tiles.size, len(keys))
