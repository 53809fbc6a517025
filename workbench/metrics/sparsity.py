"""What a sparse choice keeps and loses: by layer and head on the states of dense attention, and in the answer."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import kl_div, pad
from transformers import PreTrainedModel

from workbench.core.blocks import Prompt
from workbench.core.kv import KV
from workbench.core.plan import Site
from workbench.core.tile_grid import Grid, attention
from workbench.core.tiles import Tiles
from workbench.engine.attention_maps import whole_layers
from workbench.engine.chunked import check_chunk, prefill_chunked
from workbench.engine.forward import PrefillOutput, all_rows, prefill_many
from workbench.methods.sparse import Sparse
from workbench.methods.sparse.compact import Compact, united
from workbench.metrics.answers import wilson
from workbench.metrics.latency import wait

Methods = Mapping[str, Sparse]  # by name
MEASURES = ("density", "union", "tiles", "mass", "recall", "error")  # of a `Head`, means over heads
SEVERAL = 1 << 27  # most elements of the attention that choices keep, made at a time on a GPU


@dataclass(frozen=True)
class Head:
    """One head of one layer, over all rows of all prompts; the states are those of dense attention in every layer."""

    layer: int
    head: int
    density: float  # share of the (row, key) pairs with key ≤ row that the method's own choice attends to
    union: float  # the same after CompactAttention's union: of the chunk, over its execution group, the chunk in whole
    tiles: float  # share of the tiles with such pairs that is kept, before the union (BFLA's κ)
    mass: float  # attention that is kept (by CompactAttention: after the union), mean over rows
    lowest: float  # attention that is kept, of the row that keeps least
    recall: float  # of the tiles that truly hold most, as many as are kept: the share that is kept
    error: float  # relative L2 of the head's output


@dataclass(frozen=True)
class Counts:
    """Sums over rows, per head: [Hq] fp64 each. Counts of parts are added."""

    pairs: Tensor  # (row, key) with key ≤ row
    kept: Tensor  # of those, attended by the choice
    union: Tensor  # and after the union
    causal: Tensor  # tiles with such pairs
    tiles: Tensor  # of those, kept
    wanted: Tensor  # of the kept, how many are among as many that truly hold most
    rows: Tensor
    mass: Tensor
    lowest: Tensor
    gap: Tensor  # squared distance of the outputs
    norm: Tensor  # squared length of the dense output
    seconds: float

    def __add__(self, other: "Counts") -> "Counts":
        values = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        return Counts(**values | {"lowest": torch.minimum(self.lowest, other.lowest)})

    def heads(self, layer: int) -> Iterator[Head]:
        shares = [self.kept / self.pairs, self.union / self.pairs, self.tiles / self.causal, self.mass / self.rows]
        measures = [*shares, self.lowest, self.wanted / self.tiles, (self.gap / self.norm).sqrt()]
        for head, values in enumerate(torch.stack(measures, 1).tolist()):
            yield Head(layer, head, *values)


def of_layer(queries: Tensor, kv: KV, layer: int, methods: Sequence[Sparse], chunk: int | None = None) -> list[Counts]:
    """Count what each method keeps in one layer: queries [Hq, T, D] of a whole prompt, by `chunk` rows or at once."""
    totals: list[Counts] = []
    for rows in torch.arange(len(kv), device=queries.device).split(chunk or len(kv)):
        first, end = int(rows[0]), int(rows[-1]) + 1
        states = (queries[:, first:end], kv.keys[layer][:, :end], kv.values[layer][:, :end])
        counts = of_rows(*states, rows, methods, Site(layer, len(kv)))
        totals = [total + more for total, more in zip(totals, counts, strict=True)] if totals else counts
    return totals


@dataclass(frozen=True)
class _TimedChoice:
    """A method's choice for some rows."""

    tiles: Tiles
    attended: Tiles  # the same tiles; by CompactAttention their union
    heads: int  # how many query heads CompactAttention would execute together
    seconds: float


def of_rows(
    queries: Tensor, keys: Tensor, values: Tensor, rows: Tensor, methods: Sequence[Sparse], site: Site
) -> list[Counts]:
    """Count what each method keeps: queries [Hq, R, D] at `rows`, chosen for together, over keys and values [H, T, D].

    Choices on tiles of one size, executed by as many heads, share the dense attention that they are compared with.
    """
    choices = [_choose(queries, keys, rows, method, site) for method in methods]
    counts: dict[int, Counts] = {}
    for size, heads in sorted({(choice.tiles.size, choice.heads) for choice in choices}):
        same = [i for i, choice in enumerate(choices) if (choice.tiles.size, choice.heads) == (size, heads)]
        grid = Grid(rows, keys.shape[1], size)
        counts |= dict(zip(same, _counted(queries, keys, values, grid, [choices[i] for i in same]), strict=True))
    return [counts[i] for i in range(len(choices))]


def _choose(queries: Tensor, keys: Tensor, rows: Tensor, method: Sparse, site: Site) -> _TimedChoice:
    compact = method if isinstance(method, Compact) else Compact(method, heads=0)
    wait(queries.device)
    began = perf_counter()
    tiles = compact.inner(queries, keys, rows, site)
    union = compact.merged(tiles, len(keys), rows, keys.shape[1]) if compact is method else tiles
    wait(queries.device)
    return _TimedChoice(tiles, union, compact.group(len(queries), len(keys)), perf_counter() - began)


def _counted(
    queries: Tensor, keys: Tensor, values: Tensor, grid: Grid, choices: Sequence[_TimedChoice]
) -> list[Counts]:
    """Counts of choices on tiles of one size, executed by as many heads."""
    paged = torch.stack([choice.tiles.paged().kept for choice in choices])
    kept = paged & grid.causal
    pairs = grid.pairs()
    sums = {"pairs": pairs.sum(), "causal": grid.causal.sum(), "rows": torch.tensor(len(grid.rows))}
    shared = {name: x.to(pairs.device).double().expand(len(queries)) for name, x in sums.items()}
    measures = {"tiles": kept.sum((2, 3)), "union": (united(paged, choices[0].heads, grid) * pairs).sum((2, 3))}
    measures |= _outcomes(queries, keys, values, grid, [choice.attended for choice in choices], kept)
    counts = []
    for i, choice in enumerate(choices):
        own = {name: x[i].double() for name, x in measures.items()}
        counts.append(Counts(**shared, **own, kept=_pairs(choice.tiles, grid, pairs), seconds=choice.seconds))
    return counts


def _pairs(tiles: Tiles, grid: Grid, pairs: Tensor) -> Tensor:
    """[Hq] how many causal pairs a choice attends to."""
    total = (tiles.kept * pairs).sum((1, 2)).double()
    if tiles.columns is None:
        return total
    keys = torch.arange(grid.length, device=grid.rows.device)
    for part in grid.chunks(len(tiles.kept) * -(-grid.length // grid.size)):  # columns outside the kept tiles
        above = grid.folded((grid.rows[part, None] >= keys).int()).sum(1)  # [i, T] rows that see a key
        kept = tiles.kept[:, part.start // grid.size :][:, : len(above)].repeat_interleave(grid.size, 2)
        total += ((tiles.columns[:, None] & ~kept[..., : grid.length]) * above).sum((1, 2))
    return total


def _outcomes(
    queries: Tensor, keys: Tensor, values: Tensor, grid: Grid, choices: Sequence[Tiles], kept: Tensor
) -> dict[str, Tensor]:
    """Compute wanted, mass, gap, norm and lowest of `Counts` [M, Hq] for M choices, with dense attention only once;
    `kept` [M, Hq, I, J]: causal tiles of each choice in pages."""
    sums = torch.zeros(4, *kept.shape[:2], dtype=torch.float64, device=queries.device)
    lowest = torch.ones(kept.shape[:2], dtype=torch.float64, device=queries.device)
    wide = values.float().repeat_interleave(len(queries) // len(keys), 0)
    for part, share in attention(queries, keys, grid):
        dense = share @ wide
        norm = dense.square().sum((1, 2))
        by_tile = pad(share, (0, -grid.length % grid.size)).unflatten(-1, (-1, grid.size)).sum(-1)
        order = grid.folded(by_tile).sum(2).sort(dim=-1, descending=True, stable=True).indices  # [Hq, i, J]
        tiles = slice(part.start // grid.size, part.start // grid.size + order.shape[1])
        # one choice at a time on a CPU, whose cache should hold the intermediate tensors
        step = max(1, SEVERAL // share.numel()) if share.is_cuda else 1
        for few in (slice(at, at + step) for at in range(0, len(choices), step)):
            held = share * _visible(choices[few], tiles, part.stop - part.start, grid)
            mass = held.sum(-1)
            gap = (dense - held @ wide / mass[..., None]).square().sum((2, 3))
            some = kept[few, :, tiles]
            most = torch.zeros_like(some)
            most.scatter_(-1, order.expand_as(most), grid.columns < some.sum(-1, keepdim=True))
            wanted = (some & most).sum((2, 3))
            sums[:, few] += torch.stack([x.double() for x in (wanted, mass.sum(2), gap, norm.expand_as(gap))])
            lowest[few] = lowest[few].minimum(mass.amin(2).double())
    return dict(zip(("wanted", "mass", "gap", "norm"), sums, strict=True)) | {"lowest": lowest}


def _visible(choices: Sequence[Tiles], tiles: slice, rows: int, grid: Grid) -> Tensor:
    """[M, Hq, r, T] bool: keys that `rows` rows, from the first of some query tiles on, attend to by every choice."""
    kept = torch.stack([choice.kept[:, tiles] for choice in choices])
    at = torch.arange(max(rows, grid.length), device=kept.device) // grid.size
    seen = kept[..., at[: grid.length]][:, :, at[:rows]]
    if all(choice.columns is None for choice in choices):
        return seen
    none = torch.zeros(len(kept[0]), grid.length, dtype=torch.bool, device=kept.device)
    columns = [none if choice.columns is None else choice.columns[:, : grid.length] for choice in choices]
    return seen | torch.stack(columns)[:, :, None]


@dataclass(frozen=True)
class Sparsity:
    """A method on prompts: for each, how the next tokens at the question's rows differ from those under dense
    attention."""

    heads: tuple[Head, ...]
    kl: tuple[float, ...]  # divergence in nats, mean over the question's rows
    agree: tuple[float, ...]  # share of the question's rows with the same next token
    answer: tuple[bool, ...]  # the first token of the answer is the same
    seconds: tuple[float, ...]  # to choose, in all layers

    def mean(self, measure: str) -> float:
        """Mean over layers and heads of "density", "union", "tiles", "mass", "recall" or "error"."""
        return sum(getattr(head, measure) for head in self.heads) / max(1, len(self.heads))

    def record(self) -> dict[str, Any]:
        """Means over heads and prompts, with Wilson's 95% interval of the answers' agreement."""
        count = max(1, len(self.kl))
        low, high = wilson(sum(self.answer), len(self.answer))
        values = {name: self.mean(name) for name in MEASURES}
        values |= {"lowest": min((head.lowest for head in self.heads), default=1.0), "kl": sum(self.kl) / count}
        values |= {"agree": sum(self.agree) / count, "answer": sum(self.answer) / count, "low": low, "high": high}
        return values | {"seconds": sum(self.seconds) / count, "prompts": len(self.kl)}

    def rows(self) -> list[dict[str, Any]]:
        """A record for every layer and head."""
        return [asdict(head) for head in self.heads]


def measure(model: PreTrainedModel, prompts: Sequence[Prompt], method: Sparse, chunk: int | None = None) -> Sparsity:
    """Measure the method, `ready` for the model, on prompts prefilled at once or in chunks.

    Layers whose sliding window is narrower than a prompt are left out: they are not made sparse.
    """
    counts: dict[int, Counts] = {}
    gaps: list[tuple[float, float, bool]] = []
    seconds: list[float] = []
    for prompt in prompts:
        request = all_rows(model, prompt.tokens, sparse=method)
        step = len(prompt) + method.size if chunk is None else chunk  # one chunk for all
        check_chunk(request.plan, step)
        full = all_rows(model, prompt.tokens, return_queries=tuple(range(len(request.kv.keys))))
        (dense,) = prefill_many(model, [full])
        of_prompt = {layer: count for layer, (count,) in by_layer(model, dense, full.kv, [method], chunk).items()}
        counts |= {layer: counts[layer] + count if layer in counts else count for layer, count in of_prompt.items()}
        seconds.append(sum(count.seconds for count in of_prompt.values()))
        ours = prefill_chunked(model, request, step, len(prompt.question))
        gaps.append(compared(ours, dense, len(prompt.question)))
    heads = tuple(head for layer, count in sorted(counts.items()) for head in count.heads(layer))
    kl, agree, answer = zip(*gaps, strict=True) if gaps else ((), (), ())
    return Sparsity(heads, kl, agree, answer, tuple(seconds))


def by_layer(
    model: PreTrainedModel, dense: PrefillOutput, kv: KV, methods: Sequence[Sparse], chunk: int | None = None
) -> dict[int, list[Counts]]:
    """Count what each method keeps, by layer of full attention, on the queries and `kv` of a dense prefill."""
    layers = whole_layers(model, len(kv))
    return {layer: of_layer(scaled(model, layer, dense), kv, layer, methods, chunk) for layer in layers}


def compared(ours: PrefillOutput, dense: PrefillOutput, rows: int) -> tuple[float, float, bool]:
    """Compare the last `rows`: mean KL(dense ‖ ours) in nats, share of equal next tokens, whether the last is equal."""
    assert ours.logits is not None and dense.logits is not None
    a, b = (logits[-rows:].float().log_softmax(-1) for logits in (ours.logits, dense.logits))
    same = a.argmax(-1) == b.argmax(-1)
    gap = kl_div(a, b, reduction="none", log_target=True).sum(-1)
    return max(0.0, float(gap.mean())), float(same.float().mean()), bool(same[-1])


def scaled(model: PreTrainedModel, layer: int, step: PrefillOutput) -> Tensor:
    """Returned queries [Hq, R, D], so that logits are queries · keys / sqrt(D) whatever the model's own scale."""
    queries = step.queries[layer]
    own = getattr(model.get_decoder().layers[layer].self_attn, "scaling", None)
    return queries if own is None else queries * (own * queries.shape[-1] ** 0.5)


def operations(
    method: Sparse, heads: int, rows: int, length: int, width: int, density: float
) -> tuple[float, float, float]:
    """Count the multiply-adds of one layer for `rows` that end a prompt of `length` keys: (choice, sparse, dense).

    Sparse attends to the share `density` of the causal pairs (scores and values), dense to all of them. A sparse
    method pays where the first two together are below the third.
    """
    pairs = heads * rows * (2 * length - rows + 1) / 2
    return float(method.operations(heads, rows, length, width)), 2 * width * pairs * density, 2 * width * pairs
