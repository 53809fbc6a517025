"""Attention that a sparse method keeps, by layer and head, and its effect on the next tokens."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import reduce
from operator import add
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import kl_div, pad
from transformers import PreTrainedModel

from workbench.core.blocks import Prompt
from workbench.core.kv import KV
from workbench.core.plan import Site
from workbench.core.tiling.tiles import Grid, Tiles, attention
from workbench.engine.attention_maps import whole_layers
from workbench.engine.chunked import check_chunk, prefill_chunked
from workbench.engine.forward import PrefillOutput, all_rows, prefill_many
from workbench.methods.sparse import Sparse
from workbench.methods.sparse.compact import Compact
from workbench.metrics.answers import wilson
from workbench.metrics.latency import wait


@dataclass(frozen=True)
class Head:
    """One head of one layer, over all queries of all prompts; the states are those of dense attention in each layer."""

    layer: int
    head: int
    density: float  #: share of the causal (query, key) pairs that the method's own selection attends to
    union: float  #: the same after CompactAttention's union over a chunk and execution group, with the whole chunk
    tiles: float  #: share of the causal tiles that is kept, before the union (BFLA's κ)
    mass: float  #: kept attention (for CompactAttention: after the union), mean over queries
    lowest: float  #: kept attention of the query that keeps least
    recall: float  #: with k kept tiles, the share of the k tiles with the most true attention that is kept
    error: float  #: relative L2 of the head's output


@dataclass(frozen=True)
class Counts:
    """Sums over queries for each head, [Hq] fp64; `+` adds those of several chunks."""

    pairs: Tensor  #: causal (query, key) pairs
    kept: Tensor  #: pairs that the selection attends to
    union: Tensor  #: the same after the union
    causal: Tensor  #: causal tiles
    tiles: Tensor  #: kept causal tiles
    wanted: Tensor  #: kept tiles among the same number of tiles with the most true attention
    rows: Tensor
    mass: Tensor
    lowest: Tensor
    gap: Tensor  #: squared distance of the outputs
    norm: Tensor  #: squared length of the dense output
    seconds: float

    def __add__(self, other: "Counts") -> "Counts":
        values = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        return Counts(**values | {"lowest": torch.minimum(self.lowest, other.lowest)})

    def heads(self, layer: int) -> Iterator[Head]:
        shares = [self.kept / self.pairs, self.union / self.pairs, self.tiles / self.causal, self.mass / self.rows]
        measures = [*shares, self.lowest, self.wanted / self.tiles, (self.gap / self.norm).sqrt()]
        for head, values in enumerate(torch.stack(measures, 1).tolist()):
            yield Head(layer, head, *values)


def of_layer(queries: Tensor, kv: KV, layer: int, method: Sparse, chunk: int | None = None) -> Counts:
    """Count what a method keeps in one layer: queries [Hq, T, D] of a whole prompt, `chunk` tokens at a time."""
    parts = []
    for rows in torch.arange(len(kv), device=queries.device).split(chunk or len(kv)):
        first, end = int(rows[0]), int(rows[-1]) + 1
        states = (queries[:, first:end], kv.keys[layer][:, :end], kv.values[layer][:, :end])
        parts.append(of_rows(*states, rows, method, Site(layer, len(kv))))
    return reduce(add, parts)


def of_rows(queries: Tensor, keys: Tensor, values: Tensor, rows: Tensor, method: Sparse, site: Site) -> Counts:
    """Count what a method keeps of keys and values [H, T, D] for queries [Hq, R, D] at `rows`, selected together."""
    compact = method if isinstance(method, Compact) else Compact(method, heads=0)
    wait(queries.device)
    start = perf_counter()
    tiles = compact.inner(queries, keys, rows, site)
    attended = compact.merged(tiles, len(keys), rows, keys.shape[1]) if compact is method else tiles
    wait(queries.device)
    seconds, grid = perf_counter() - start, Grid(rows, keys.shape[1], tiles.size)
    paged, pairs = tiles.paged().kept, grid.pairs()
    kept, union = paged & grid.causal, grid.union_over_groups(paged, compact.group(len(queries), len(keys)))
    sums = {"pairs": pairs.sum(), "causal": grid.causal.sum(), "rows": torch.tensor(len(rows))}
    shared = {name: x.to(pairs.device).double().expand(len(queries)) for name, x in sums.items()}
    measures = {"tiles": kept.sum((1, 2)), "union": (union * pairs).sum((1, 2))}
    measures |= _attention_kept(queries, keys, values, grid, attended, kept)
    own = {name: x.double() for name, x in measures.items()}
    return Counts(**shared, **own, kept=_pairs(tiles, grid, pairs), seconds=seconds)


def _pairs(tiles: Tiles, grid: Grid, pairs: Tensor) -> Tensor:
    """Return [Hq]: the number of causal pairs that a selection attends to."""
    total = (tiles.kept * pairs).sum((1, 2)).double()
    if tiles.columns is None:
        return total
    keys = torch.arange(grid.length, device=grid.rows.device)
    for part in grid.chunks(len(tiles.kept) * -(-grid.length // grid.size)):  # single columns outside kept tiles
        above = grid.rows_to_tiles((grid.rows[part, None] >= keys).int()).sum(1)  # [i, T] queries that attend to a key
        kept = tiles.kept[:, part.start // grid.size :][:, : len(above)].repeat_interleave(grid.size, 2)
        total += ((tiles.columns[:, None] & ~kept[..., : grid.length]) * above).sum((1, 2))
    return total


def _attention_kept(
    queries: Tensor, keys: Tensor, values: Tensor, grid: Grid, choice: Tiles, kept: Tensor
) -> dict[str, Tensor]:
    """Return wanted, mass, gap, norm and lowest of `Counts` [Hq]; `kept` [Hq, I, J] are `choice`'s causal tiles."""
    sums = torch.zeros(4, len(kept), dtype=torch.float64, device=queries.device)
    lowest = torch.ones(len(kept), dtype=torch.float64, device=queries.device)
    wide = values.float().repeat_interleave(len(queries) // len(keys), 0)
    for part, share in attention(queries, keys, grid):
        dense = share @ wide
        by_tile = pad(share, (0, -grid.length % grid.size)).unflatten(-1, (-1, grid.size)).sum(-1)
        order = grid.rows_to_tiles(by_tile).sum(2).sort(dim=-1, descending=True, stable=True).indices  # [Hq, i, J]
        tiles = slice(part.start // grid.size, part.start // grid.size + order.shape[1])
        kept_weights = share * _visible(choice, tiles, part.stop - part.start, grid)
        mass, chosen = kept_weights.sum(-1), kept[:, tiles]
        most = torch.zeros_like(chosen)
        most.scatter_(-1, order, grid.columns < chosen.sum(-1, keepdim=True))
        gap = (dense - kept_weights @ wide / mass[..., None]).square().sum((1, 2))
        measures = ((chosen & most).sum((1, 2)), mass.sum(1), gap, dense.square().sum((1, 2)))
        sums += torch.stack([x.double() for x in measures])
        lowest = lowest.minimum(mass.amin(1).double())
    return dict(zip(("wanted", "mass", "gap", "norm"), sums, strict=True)) | {"lowest": lowest}


def _visible(choice: Tiles, tiles: slice, rows: int, grid: Grid) -> Tensor:
    """Return [Hq, r, T] bool: keys that `rows` queries attend to, from the first query of some query tiles on."""
    at = torch.arange(max(rows, grid.length), device=choice.kept.device) // grid.size
    seen = choice.kept[:, tiles][..., at[: grid.length]][:, at[:rows]]
    return seen if choice.columns is None else seen | choice.columns[:, None, : grid.length]


Methods = Mapping[str, Sparse]  # by name
MEASURES = ("density", "union", "tiles", "mass", "recall", "error")  # fields of `Head`, averaged over heads


@dataclass(frozen=True)
class Sparsity:
    """Effect of a method: `heads` for every layer and head, and lists with one entry per prompt.

    kl, agree, answer  next tokens at the question's tokens compared with dense attention: KL divergence (nats), share
                       of equal tokens, whether the answer's first token is equal
    """

    heads: tuple[Head, ...]
    kl: tuple[float, ...]  #: divergence in nats, mean over the question's tokens
    agree: tuple[float, ...]  #: share of the question's tokens with the same next token
    answer: tuple[bool, ...]  #: the first token of the answer is the same
    seconds: tuple[float, ...]  #: of the selection, in all layers

    def mean(self, measure: str) -> float:
        """Return the mean over layers and heads of "density", "union", "tiles", "mass", "recall" or "error"."""
        return sum(getattr(head, measure) for head in self.heads) / max(1, len(self.heads))

    def record(self) -> dict[str, Any]:
        """Return the means over heads and prompts, with Wilson's 95% interval of the answers' agreement.

        "heads" has a record for every layer and head.
        """
        count = max(1, len(self.kl))
        low, high = wilson(sum(self.answer), len(self.answer))
        values = {name: self.mean(name) for name in MEASURES}
        values |= {"lowest": min((head.lowest for head in self.heads), default=1.0), "kl": sum(self.kl) / count}
        values |= {"agree": sum(self.agree) / count, "answer": sum(self.answer) / count, "low": low, "high": high}
        return values | {"seconds": sum(self.seconds) / count, "prompts": len(self.kl), "heads": self.rows()}

    def rows(self) -> list[dict[str, Any]]:
        """Return a record for every layer and head."""
        return [asdict(head) for head in self.heads]


def measure(model: PreTrainedModel, prompts: Sequence[Prompt], method: Sparse, chunk: int | None = None) -> Sparsity:
    """Measure the method, `ready` for the model, on prompts prefilled at once or in chunks.

    Layers whose sliding window is narrower than a prompt stay dense, and are left out.
    """
    counts: dict[int, Counts] = {}
    gaps: list[tuple[float, float, bool]] = []
    seconds: list[float] = []
    for prompt in prompts:
        request = all_rows(model, prompt.tokens, sparse=method)
        step = len(prompt) + method.size if chunk is None else chunk  # the prompt in one chunk
        check_chunk(request.plan, step)
        full = all_rows(model, prompt.tokens, return_queries=tuple(range(len(request.kv.keys))))
        (dense,) = prefill_many(model, [full])
        of_prompt = by_layer(model, dense, full.kv, method, chunk)
        counts |= {layer: counts[layer] + count if layer in counts else count for layer, count in of_prompt.items()}
        seconds.append(sum(count.seconds for count in of_prompt.values()))
        ours = prefill_chunked(model, request, step, len(prompt.question))
        gaps.append(compared(ours, dense, len(prompt.question)))
    heads = tuple(head for layer, count in sorted(counts.items()) for head in count.heads(layer))
    kl, agree, answer = zip(*gaps, strict=True) if gaps else ((), (), ())
    return Sparsity(heads, kl, agree, answer, tuple(seconds))


def by_layer(
    model: PreTrainedModel, dense: PrefillOutput, kv: KV, method: Sparse, chunk: int | None = None
) -> dict[int, Counts]:
    """Count what a method keeps in each layer of full attention, from the queries and `kv` of a dense prefill."""
    layers = whole_layers(model, len(kv))
    return {layer: of_layer(scale_queries(model, layer, dense), kv, layer, method, chunk) for layer in layers}


def compared(ours: PrefillOutput, dense: PrefillOutput, rows: int) -> tuple[float, float, bool]:
    """Compare the last `rows`: mean KL(dense ‖ ours) in nats, share of equal next tokens, whether the last is equal."""
    assert ours.logits is not None and dense.logits is not None
    a, b = (logits[-rows:].float().log_softmax(-1) for logits in (ours.logits, dense.logits))
    same = a.argmax(-1) == b.argmax(-1)
    gap = kl_div(a, b, reduction="none", log_target=True).sum(-1)
    return max(0.0, float(gap.mean())), float(same.float().mean()), bool(same[-1])


def scale_queries(model: PreTrainedModel, layer: int, step: PrefillOutput) -> Tensor:
    """Return a prefill's queries [Hq, R, D], scaled so that logits are queries · keys / sqrt(D) in any model."""
    queries = step.queries[layer]
    own = getattr(model.get_decoder().layers[layer].self_attn, "scaling", None)
    return queries if own is None else queries * (own * queries.shape[-1] ** 0.5)
