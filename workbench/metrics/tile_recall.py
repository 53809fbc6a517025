"""A choice of tiles beside the attention that they truly get: which it keeps, and which needed ones it drops."""

from dataclasses import dataclass, field, replace
from time import perf_counter

import torch
from torch import Tensor
from torch.nn.functional import normalize, pad
from transformers import PreTrainedModel

from workbench.core.errors import BadInput
from workbench.core.plan import Site
from workbench.core.tile_grid import Grid, mass
from workbench.core.tile_selection import smallest
from workbench.core.tiles import Tiles
from workbench.engine.attention_maps import whole_layers
from workbench.engine.forward import all_rows, prefill_many
from workbench.methods.sparse import Sparse
from workbench.methods.sparse.bfla import Bfla
from workbench.methods.sparse.compact import Compact
from workbench.metrics.sparsity import scaled


@dataclass(frozen=True, eq=False)
class States:
    """Queries and keys of a prompt under dense attention, by layer in which a sparse method may choose; logits are
    queries · keys / sqrt(D)."""

    queries: dict[int, Tensor]  # [Hq, T, D]
    keys: dict[int, Tensor]  # [H, T, D]
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
        """Tokens."""
        return next(iter(self.keys.values())).shape[1]

    def mass(self, layer: int, size: int) -> Tensor:
        """[Hq, I, J] fp32 attention that tiles of `size` truly get, mean over the rows of a query tile; kept."""
        at = layer, size
        if at not in self._known:
            self._known[at] = mass(self.queries[layer], self.keys[layer], self.grid(size))
        return self._known[at]

    def mass_of(self, layer: int, head: int, rows: slice, size: int) -> Tensor:
        """[i, J] fp32, the same of one head and of the query tiles `rows` only; other rows are not computed."""
        at = layer, size, head, rows.start, rows.stop
        if at not in self._known:
            grid, keys = self.grid(size, rows), self.keys[layer][head // (self.heads // self.kv_heads)]
            self._known[at] = mass(self.queries[layer][head, grid.rows][None], keys[None], grid)[0]
        return self._known[at]

    def grid(self, size: int, rows: slice = slice(None)) -> Grid:
        """Tiles of the whole prompt, or of some query tiles of it."""
        positions = torch.arange(len(self), device=next(iter(self.keys.values())).device)
        start, stop, _ = rows.indices(-(-len(self) // size))
        return Grid(positions[start * size : stop * size], len(self), size)


def dense_states(model: PreTrainedModel, tokens: Tensor) -> States:
    """Run one dense pass over token ids [T]. Layers with a sliding window narrower than the prompt are left out;
    BadInput where no layer is left."""
    layers = tuple(whole_layers(model, len(tokens)))
    if not layers:
        raise BadInput(f"every layer has a sliding window narrower than the {len(tokens)} tokens: nothing to choose")
    request = all_rows(model, tokens, return_queries=layers)
    (output,) = prefill_many(model, [request], logits_to_keep=1)
    return States({i: scaled(model, i, output) for i in layers}, {i: request.kv.keys[i] for i in layers})


def synthetic_states(length: int, seed: int = 0, topics: int = 12) -> States:
    """Make up one layer of 2 query heads over 1 KV head of 64 channels, with the sparse attention of long prompts.

    Keys carry a topic (of stretches of 200 to 3,000 tokens), their place (slow rotations), and a common direction: the
    first 4 tokens (a sink) and every thousandth or so (a column). Head 0 attends to tokens nearby and the sink, head 1
    to its topic and the columns.
    """
    draw = torch.Generator().manual_seed(seed)
    width = 48
    place = torch.arange(length)[:, None]
    subjects = normalize(torch.randn(topics, width, generator=draw), dim=-1)
    spans = torch.randint(200, 3001, (length // 200 + 1,), generator=draw)
    topic_of = torch.randint(topics, (len(spans),), generator=draw).repeat_interleave(spans)[:length]
    common = torch.zeros(length, 1)
    common[torch.rand(length, generator=draw) < 1e-3] = 0.6
    common[:4] = 1
    angles = place * torch.tensor([1 / 60, 1 / 150, 1 / 400, 1 / 1000, 1 / 2500, 1 / 6000, 1 / 15000])
    places = torch.cat((angles.cos(), angles.sin()), 1)
    noise = 0.06 * torch.randn(3, length, width, generator=draw)
    keys = torch.cat((subjects[topic_of] + noise[0], places, common, 1 - common), 1)
    ones = torch.ones(length, 1)
    near = torch.cat((8 * noise[1], 9 * places, 60 * ones, 0 * ones), 1)
    topic = torch.cat((45 * (subjects[topic_of] + noise[2]), 2 * places, 55 * ones, 0 * ones), 1)
    return States({0: torch.stack((near, topic))}, {0: keys[None]})


@dataclass(frozen=True, eq=False)
class Chosen:
    """One layer of a whole prompt. Single columns (vertical-slash, QUOKA) count as the tiles that they are in."""

    tiles: Tiles
    grid: Grid
    mass: Tensor  # [Hq, I, J] fp32: attention of a tile, mean over the rows of its query tile
    needed: Tensor  # [Hq, I, J] bool: fewest tiles that hold a share of it, a row's own tile first
    seconds: float  # to choose

    @property
    def kept(self) -> Tensor:
        """[Hq, I, J] bool"""
        return self.tiles.kept & self.grid.causal

    @property
    def missed(self) -> Tensor:
        """[Hq, I, J] bool: needed and dropped."""
        return self.needed & ~self.kept

    def density(self) -> Tensor:
        """[Hq]: share of the causal pairs (row, key) in kept tiles."""
        pairs = self.grid.pairs()
        return (self.kept * pairs).sum((1, 2)).double() / pairs.sum()

    def held(self, some: Tensor | None = None) -> Tensor:
        """[Hq]: attention within the kept tiles (or within `some` [Hq, I, J] bool), mean over rows."""
        count = self.grid.folded(torch.ones(len(self.grid.rows), 1, device=self.grid.rows.device)).sum((1, 2))
        share = (self.mass * (self.kept if some is None else some)).sum(-1).double()
        return (share * count).sum(1) / count.sum()

    def lost(self) -> Tensor:
        """[Hq]: attention within tiles that are needed and dropped, mean over rows."""
        return self.held(self.missed)

    def record(self) -> dict[str, float]:
        """Means over heads; `lowest`: the head that keeps least."""
        held = self.held()
        values = {"density": self.density().mean(), "mass": held.mean(), "lowest": held.min()}
        missed = self.missed.sum((1, 2)) / self.grid.causal.sum()
        values |= {"missed": missed.mean(), "missed_mass": self.lost().mean()}
        return {name: float(value) for name, value in values.items()} | {"seconds": self.seconds}


def chosen(states: States, layer: int, method: Sparse, share: float = 0.8, chunk: int | None = None) -> Chosen:
    """Choose with `method` (ready for the model) for the whole prompt, at once or in chunks of whole tiles.

    `share` of the attention is what the `needed` tiles hold. Raises BadInput for a chunk of no whole tiles.
    """
    if chunk is not None and (chunk < 1 or chunk % method.size):
        raise BadInput(f"chunk {chunk} is no multiple of {method.size}, the tile of the method")
    began = perf_counter()
    tiles = choice(states, layer, method, chunk)
    seconds = perf_counter() - began
    best = needed(states, layer, tiles.size, share)
    return replace(best, tiles=tiles, seconds=seconds)


def needed(states: States, layer: int, size: int, share: float = 0.8) -> Chosen:
    """Choose as the oracle does: the fewest tiles of `size` that hold `share` of the attention of every query tile."""
    truth, grid = states.mass(layer, size), states.grid(size)
    best = smallest(truth, share, grid.own) & grid.causal
    return Chosen(Tiles(best, size), grid, truth, best, 0.0)


def choice(states: States, layer: int, method: Sparse, chunk: int | None = None) -> Tiles:
    """Choose whole tiles with `method`, at once or chunk by chunk."""
    queries, keys = states.queries[layer], states.keys[layer]
    key_tiles = -(-len(states) // method.size)
    chunks = []
    for rows in torch.arange(len(states), device=keys.device).split(chunk or len(states)):
        end = int(rows[-1]) + 1
        kept = method(queries[:, rows], keys[:, :end], rows, Site(layer, len(states))).paged().kept
        chunks.append(pad(kept, (0, key_tiles - kept.shape[2])))
    return Tiles(torch.cat(chunks, 1), method.size)


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


@dataclass(frozen=True, eq=False)
class TileWindow:
    """Some query tiles of one head, over all key tiles or some."""

    rows: slice  # query tiles
    keys: slice  # key tiles
    size: int
    mass: Tensor  # [i, j] fp32
    kept: Tensor  # [i, j] bool, causal
    needed: Tensor  # [i, j] bool
    causal: Tensor  # [i, j] bool

    def at(self, keys: slice) -> "TileWindow":
        """The same rows over the key tiles `keys`."""
        tensors = (x[:, keys] for x in (self.mass, self.kept, self.needed, self.causal))
        return TileWindow(self.rows, keys, self.size, *tensors)

    def held(self) -> float:
        """Attention within kept tiles, mean over query tiles."""
        return float((self.mass * self.kept).sum(1).mean())

    def missed(self) -> float:
        """Attention within tiles that are needed and dropped."""
        return float((self.mass * (self.needed & ~self.kept)).sum(1).mean())


def window(states: States, layer: int, head: int, tiles: Tiles, rows: slice, share: float = 0.8) -> TileWindow:
    """Compare true attention of query tiles `rows` of one head, and no others, with what `tiles` (of all) keep."""
    grid, truth = states.grid(tiles.size, rows), states.mass_of(layer, head, rows, tiles.size)
    best, kept = smallest(truth, share, grid.own), tiles.kept[head, rows] & grid.causal
    return TileWindow(rows, slice(0, grid.shape[1]), tiles.size, truth, kept, best, grid.causal)


@dataclass(frozen=True, eq=False)
class BflaRules:
    """The rules by which BFLA keeps the tiles of one layer, in its order."""

    kept: dict[str, Tensor]  # rule → [H, I, J] bool, causal tiles only; the rules overlap
    causal: Tensor  # [I, J] bool
    added: dict[str, tuple[float, float]]  # rule → (density, attention) that the rules before it do not hold


def bfla_rules(states: States, layer: int, method: Bfla) -> BflaRules:
    """Find the rules that keep a tile, and what each adds to those before it; shares are means over the query heads."""
    group = states.heads // states.kv_heads
    grid, truth = states.grid(method.size), states.mass(layer, method.size)
    by_rule = method.causes(states.queries[layer], states.keys[layer], grid.rows)
    before, added = torch.zeros_like(truth, dtype=torch.bool), {}
    for name, kept in by_rule.items():
        new = Chosen(Tiles(kept & ~before, method.size), grid, truth, before, 0.0)
        added[name] = float(new.density().mean()), float(new.held().mean())
        before = before | kept
    return BflaRules({name: kept[::group] for name, kept in by_rule.items()}, grid.causal, added)
