"""Where a sparse prefill costs more than a dense one: what is kept in any case, counts, and times of the choice."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import PretrainedConfig

from workbench.core.errors import BadInput
from workbench.core.plan import Site
from workbench.core.tile_grid import Grid
from workbench.methods.sparse import Sparse
from workbench.metrics.cost import Shape, shape

PROBES = (256, 512, 1024, 2048, 4096, 8192)  # lengths at which it is counted what is kept in any case
LENGTHS = tuple(round(2 ** (step / 4)) for step in range(32, 81))  # 256 to 1,048,576 tokens


@dataclass(frozen=True)
class Model:
    """What of a model decides where its crossover lies."""

    name: str
    shape: Shape
    heads: int  # query heads
    width: int  # of a head

    @classmethod
    def of(cls, name: str, config: PretrainedConfig) -> "Model":
        """From a configuration of transformers; no weights are needed."""
        found, own = shape(config), config.get_text_config(decoder=True)
        heads = own.num_attention_heads
        return cls(name, found, heads, found.query_width[0] // heads)


@dataclass(frozen=True)
class Operations:
    """Of a prefill of one prompt, in flops, all layers."""

    linear: float  # projections, MLPs, output head
    dense: float  # scores and weighted values of all causal pairs
    kept: float  # of those that the choice keeps
    choice: float

    @property
    def saved(self) -> float:
        """Share of a dense prefill that is saved; below 0 the sparse one costs more."""
        return (self.dense - self.kept - self.choice) / (self.linear + self.dense)


def forced(method: Sparse, length: int, chunk: int | None = None) -> float:
    """Share of the causal pairs that is kept whatever the scores: what 8 heads of random states all keep, with the
    threshold at its sparsest where there is a choice to make (a window is what it is).

    Tokens of a tile are alike and tiles far apart, so that scores are. Choices that see all pairs (the oracle) take
    memory of length² / 4 here.
    """
    if method.threshold_steps[0] and method.operations(1, length, length, 1):
        method = method.with_threshold(method.threshold_steps[1][0])
    draw, kept, pairs = torch.Generator().manual_seed(0), 0, 0
    tiles = 6 * torch.randn(2, 8, -(-length // method.size), 8, generator=draw)
    queries, keys = tiles.repeat_interleave(method.size, 2)[:, :, :length]
    for rows in torch.arange(length).split(chunk or length):
        end = int(rows[-1]) + 1
        choice = method(queries[:, rows], keys[:, :end], rows, Site(0, length))
        by_tile = Grid(rows, end, choice.size).pairs()
        kept, pairs = kept + int((choice.kept.all(0) * by_tile).sum()), pairs + int(by_tile.sum())
    return kept / pairs


@dataclass(frozen=True)
class Floor:
    """What is kept in any case at any length: `counted` at PROBES, between them by the logarithm of the length, beyond
    them by the counts' own law: tiles in lines and in corners, a + b / length + c / length²."""

    counted: tuple[float, ...]

    @classmethod
    def of(cls, method: Sparse, chunk: int | None = None) -> "Floor":
        return cls(tuple(forced(method, length, chunk) for length in PROBES))

    def at(self, length: int) -> float:
        if length <= PROBES[-1]:
            return float(np.interp(np.log(length), np.log(PROBES), self.counted))
        last = np.array(PROBES[-3:], dtype=float)
        law = np.linalg.solve(np.stack([last**0, 1 / last, 1 / last**2], 1), self.counted[-3:])
        return float(np.clip(law @ [1, 1 / length, 1 / length**2], 0, 1))

    def density(self, length: int, chosen: float) -> float:
        """Share of the causal pairs that is kept, where of those that may be left out the share `chosen` is kept."""
        return self.at(length) + (1 - self.at(length)) * chosen


def operations(model: Model, method: Sparse, length: int, density: float, chunk: int | None = None) -> Operations:
    """One prompt of `length` tokens, prefilled at once or in chunks, with `density` of its causal pairs kept."""
    layers, ends = len(model.shape.windows), [*range(chunk or length, length, chunk or length), length]
    starts = [0, *ends[:-1]]
    choice = sum(
        method.operations(model.heads, end - start, end, model.width) for start, end in zip(starts, ends, strict=True)
    )
    dense = 4 * model.heads * model.width * length * (length + 1) / 2 * layers
    linear = 2.0 * (model.shape.linear * length + model.shape.head)
    return Operations(linear, dense, dense * density, 2.0 * choice * layers)


def attention_share(
    model: Model, method: Sparse, length: int, density: float, chunk: int | None = None
) -> tuple[float, float]:
    """Operations of what is kept, and of the choice, as shares of those of dense attention."""
    found = operations(model, method, length, density, chunk)
    return found.kept / found.dense, found.choice / found.dense


def crossover(
    model: Model, method: Sparse, floor: Floor, chosen: float, gain: float = 0.0, chunk: int | None = None
) -> int | None:
    """The least of LENGTHS from which on a prefill with the method saves more than the share `gain` of a dense one;
    None where it never does."""
    if not 0 <= chosen <= 1 or not 0 <= gain < 1:
        raise BadInput(f"chosen {chosen} and gain {gain} are shares, from 0 to 1")
    least = None
    for length in reversed(LENGTHS):
        if operations(model, method, length, floor.density(length, chosen), chunk).saved <= gain:
            break
        least = length
    return least


def times(
    methods: Mapping[str, Sparse], heads: int, kv_heads: int, width: int, lengths: Sequence[int], repeats: int = 3,
    device: str = "cpu",
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """Seconds of one layer on random states, {name, length, seconds, forced}: to choose, by every method, and of dense
    causal attention itself (name ""); `forced`: share that is kept in any case. Medians of `repeats` after one to warm
    up."""
    for length in lengths:
        draw = torch.Generator().manual_seed(length)
        queries, keys = (torch.randn(n, length, width, generator=draw).to(device) for n in (heads, kv_heads))
        wide = keys.repeat_interleave(heads // kv_heads, 0)
        attend = partial(scaled_dot_product_attention, queries[None], wide[None], wide[None], is_causal=True)
        yield {"name": "", "length": length, "seconds": _median(attend, repeats, device), "forced": 1.0}
        rows = torch.arange(length, device=device)
        for name, method in methods.items():
            choose = partial(method, queries, keys, rows, Site(0, length))
            seconds = _median(choose, repeats, device)
            yield {"name": name, "length": length, "seconds": seconds, "forced": forced(method, length)}


def _median(job: Any, repeats: int, device: str) -> float:
    found = []
    for _ in range(repeats + 1):
        began = perf_counter()
        job()
        if device != "cpu":
            torch.cuda.synchronize(device)
        found.append(perf_counter() - began)
    return median(found[1:])
