"""Prompt length from which sparse prefill is cheaper than dense: pairs kept by rule, FLOPs, selection times."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, repeat
from typing import Any

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import PretrainedConfig

from workbench.core.errors import BadInput
from workbench.core.plan import Site
from workbench.core.tiling.tiles import Grid
from workbench.methods import sparse
from workbench.methods.sparse import Sparse
from workbench.metrics.answers import Records
from workbench.metrics.cost import ModelShape, shape
from workbench.metrics.latency import measure
from workbench.metrics.tiles.sparsity import Methods

PROBES = (256, 512, 1024, 2048, 4096, 8192)  # prompt lengths at which `Floor` counts the pairs that are kept by rule
LENGTHS = tuple(round(2 ** (step / 4)) for step in range(32, 81))  # 256 to 1,048,576 tokens


@dataclass(frozen=True)
class CrossoverModel:
    """Sizes of a model that determine its crossover."""

    name: str
    shape: ModelShape
    heads: int  #: query heads
    width: int  #: of a head

    @classmethod
    def of(cls, name: str, config: PretrainedConfig) -> "CrossoverModel":
        """Read the sizes from a transformers configuration; no weights are needed."""
        sizes = shape(config)
        heads = config.get_text_config(decoder=True).num_attention_heads
        return cls(name, sizes, heads, sizes.query_width[0] // heads)


Models = Mapping[str, CrossoverModel]  # by short name


@dataclass(frozen=True)
class Operations:
    """FLOPs of prefilling one prompt, all layers."""

    linear: float  #: projections, MLPs, output head
    dense: float  #: scores and weighted values of all causal pairs
    kept: float  #: scores and weighted values of the kept pairs
    choice: float  #: the selection itself

    @property
    def saved_share(self) -> float:
        """Share of a dense prefill that is saved; negative if the sparse prefill costs more."""
        return (self.dense - self.kept - self.choice) / (self.linear + self.dense)


def forced_share(method: Sparse, length: int, chunk: int | None = None) -> float:
    """Return the share of the causal pairs that the method keeps whatever the scores are: sinks, windows, full rows.

    Counts the pairs that each of 8 heads of random states keeps at the sparsest threshold. A method that selects
    nothing, such as a window, is counted unchanged. Tokens of a tile are equal and tiles are far apart, so that their
    scores differ and a threshold keeps few tiles. Methods that score all pairs (the oracle) need memory of length² / 4.
    """
    if method.threshold_steps[0] and method.operations(1, length, length, 1):
        method = method.with_threshold(method.threshold_steps[1][0])
    draw = torch.Generator().manual_seed(0)
    tiles = 6 * torch.randn(2, 8, -(-length // method.size), 8, generator=draw)
    queries, keys = tiles.repeat_interleave(method.size, 2)[:, :, :length]
    kept = pairs = 0
    for rows in torch.arange(length).split(chunk or length):
        end = int(rows[-1]) + 1
        choice = method(queries[:, rows], keys[:, :end], rows, Site(0, length))
        by_tile = Grid(rows, end, choice.size).pairs()
        kept += int((choice.kept.all(0) * by_tile).sum())
        pairs += int(by_tile.sum())
    return kept / pairs


@dataclass(frozen=True)
class Floor:
    """Share of the causal pairs that a method keeps by rule, as a function of prompt length.

    `counted` holds `forced_share` at PROBES. Between these lengths, the share is interpolated over the logarithm of the
    length. Beyond them, it follows a + b / length + c / length², fitted to the last three counts: pairs kept at a fixed
    rate, lines of tiles, and corners.
    """

    counted: tuple[float, ...]

    @classmethod
    def of(cls, method: Sparse, chunk: int | None = None) -> "Floor":
        """Count at PROBES."""
        return cls(tuple(forced_share(method, length, chunk) for length in PROBES))

    def share_at(self, length: int) -> float:
        """Return the share of the causal pairs of a prompt of `length` tokens."""
        if length <= PROBES[-1]:
            return float(np.interp(np.log(length), np.log(PROBES), self.counted))
        last = np.array(PROBES[-3:], dtype=float)
        law = np.linalg.solve(np.stack([last**0, 1 / last, 1 / last**2], 1), self.counted[-3:])
        return float(np.clip(law @ [1, 1 / length, 1 / length**2], 0, 1))

    def density(self, length: int, chosen: float) -> float:
        """Return the share of causal pairs that is kept, if the method keeps `chosen` of those that it may drop."""
        return self.share_at(length) + (1 - self.share_at(length)) * chosen


def operations(
    model: CrossoverModel, method: Sparse, length: int, density: float, chunk: int | None = None
) -> Operations:
    """Count the FLOPs of one prompt, prefilled at once or in chunks, if `density` of its causal pairs is kept."""
    layers = len(model.shape.windows)
    borders = [*range(0, length, chunk or length), length]
    choice = sum(method.operations(model.heads, end - start, end, model.width) for start, end in pairwise(borders))
    dense = 4 * model.heads * model.width * length * (length + 1) / 2 * layers
    linear = 2.0 * (model.shape.linear * length + model.shape.head)
    return Operations(linear, dense, dense * density, 2.0 * choice * layers)


def attention_share(
    model: CrossoverModel, method: Sparse, length: int, density: float, chunk: int | None = None
) -> tuple[float, float]:
    """Return the FLOPs of the kept pairs, and of the selection, as shares of dense attention's."""
    count = operations(model, method, length, density, chunk)
    return count.kept / count.dense, count.choice / count.dense


def crossover(
    model: CrossoverModel, method: Sparse, floor: Floor, chosen: float, gain: float = 0.0, chunk: int | None = None
) -> int | None:
    """Return the smallest of LENGTHS from which on the method saves more than the share `gain` of a dense prefill.

    None if there is none. Raises BadInput if `chosen` or `gain` is not a share.
    """
    if not 0 <= chosen <= 1 or not 0 <= gain < 1:
        raise BadInput(f"chosen {chosen} and gain {gain} are shares, from 0 to 1")
    shortest = None
    for length in reversed(LENGTHS):
        if operations(model, method, length, floor.density(length, chosen), chunk).saved_share <= gain:
            break
        shortest = length
    return shortest


def times(
    methods: Methods,
    heads: int,
    kv_heads: int,
    width: int,
    lengths: Sequence[int],
    repeats: int = 3,
    device: str = "cpu",
) -> Iterator[dict[str, Any]]:
    """Time each method's selection in one layer on random states: records {name, length, seconds, forced}.

    The record with name "" is dense causal attention itself. `forced` is the share that is kept by rule
    (`forced_share`). Seconds are medians of `repeats` after one warm-up.
    """
    for length in lengths:
        draw = torch.Generator().manual_seed(length)
        queries, keys = (torch.randn(n, length, width, generator=draw).to(device) for n in (heads, kv_heads))
        wide = keys.repeat_interleave(heads // kv_heads, 0)
        rows = torch.arange(length, device=device)
        dense = partial(scaled_dot_product_attention, queries[None], wide[None], wide[None], is_causal=True)
        jobs: dict[str, Any] = {"": dense}
        jobs |= {name: partial(method, queries, keys, rows, Site(0, length)) for name, method in methods.items()}
        for name, job in jobs.items():
            seconds = measure(repeat(job, repeats), torch.device(device), warm_up=1).p50
            share = forced_share(methods[name], length) if name else 1.0
            yield {"name": name, "length": length, "seconds": seconds, "forced": share}


def costs(model: CrossoverModel, settings: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return FLOPs of attention and selection of measured settings, as shares of dense attention's.

    `settings`: {sparse, prompt_tokens, chunk, density, union}; CompactAttention reads the pages of its union.
    """
    read = [r["union"] if r["sparse"].startswith("compact") else r["density"] for r in settings]
    return [
        sum(attention_share(model, sparse.from_spec(r["sparse"]), int(r["prompt_tokens"]), density, _chunk(r["chunk"])))
        for r, density in zip(settings, read, strict=True)
    ]


def _chunk(rows: float | None) -> int | None:
    return None if rows is None or rows != rows else int(rows)


def with_saved(records: Iterable[Mapping[str, Any]]) -> Records:
    """Add to records of `times` the seconds that a kernel without overhead would save (`saved`).

    This is dense attention's time for the pairs that are not kept by rule, minus the time of the selection.
    """
    timed = list(records)
    dense = {r["length"]: r["seconds"] for r in timed if not r["name"]}
    return [{**r, "saved": dense[r["length"]] * (1 - r["forced"]) - r["seconds"] if r["name"] else 0.0} for r in timed]


def crossings(
    models: Models, cases: Mapping[str, int | None], chosen: float, gain: float, length: int = 32768
) -> Records:
    """Find the `crossover` of methods on several models: records {spec, chunk, forced, forced_long, read, choice}.

    Each record also has a length for each key of `models`. `cases`: spec → tokens of a chunk. `forced` is the share
    kept by rule at 2,048 tokens, `forced_long` at `length`. `read` and `choice` are shares of dense attention at
    `length` tokens, on the last model.
    """
    records = []
    for spec, chunk in cases.items():
        method = sparse.from_spec(spec)
        floor = Floor.of(method, chunk)
        last = list(models.values())[-1]
        read, choice = attention_share(last, method, length, floor.density(length, chosen), chunk)
        row = {"spec": spec, "chunk": chunk, "forced": floor.share_at(2048), "forced_long": floor.share_at(length)}
        pays = {name: crossover(model, method, floor, chosen, gain, chunk) for name, model in models.items()}
        records.append({**row, "read": read, "choice": choice, **pays})
    return records


def lengths_of(records: Sequence[Mapping[str, Any]], names: Mapping[str, str]) -> dict[str, dict[str, int]]:
    """Return the lengths of `crossings` that are reached, by spec and model; `names`: key in a record → model."""
    return {r["spec"]: {name: r[key] for key, name in names.items() if r[key]} for r in records}
