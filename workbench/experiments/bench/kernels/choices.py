"""Workloads that select tiles: a selection with the lists that attention takes, compared with the attention itself.

Inputs are random numbers in bf16, as in `workloads`. A threshold of the rule is set before timing, so that the
selection has a given density, and the attention reads the selected tiles. "ours" is the selection with its lists; in a
workload named "choice and attention", it is both.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from workbench.core.tiling.tile_selection import TileRule
from workbench.core.tiling.tiles import Grid, Tiles
from workbench.experiments.bench import workload_module
from workbench.experiments.bench.kernels import workloads
from workbench.experiments.bench.kernels.workloads import DEVICE, KernelWorkload, Variant, labelled, numbers
from workbench.kernels._pages.lists import PageLists, page_table, tile_lists, union_of

LENGTHS = (32, 128)  # in units, 1024 tokens
TILED = ((32, 128), (128, 64), (128, 128))  # BFLA: length in units, tile in tokens if a unit has 1024
DENSITY = 0.15  # of the causal tiles
SHARES = (0.25, 0.10)  # of the pages before a chunk
STRIDE = 8  # of XAttention
STRIDES = (STRIDE, 16)  # both strides of its paper
HALVINGS = 14
SLOW = 64  # units; XAttention's torch code is timed up to this length
FEEDS = "the attention it feeds"
ANEW = "ours, means of all keys anew"  # as for the first chunk over keys that were cached earlier
IN_8_BITS = "ours, float8"
NONE: Variant = {}


@dataclass(frozen=True)
class SelectionKernel:
    """A kernel that selects on one set of inputs; `shared` neighbouring heads select alike."""

    kernel: str
    q: Tensor
    keys: Tensor
    values: Tensor
    rows: Tensor
    options: tuple[int, ...] = ()
    shared: int = 1

    def select_tiles(self, rule: TileRule, variant: Variant = NONE) -> Tensor:
        kept: Tensor = workload_module(self.kernel).launch(self.q, self.keys, self.rows, rule, *self.options, **variant)
        return kept

    def torch(self, rule: TileRule) -> Any:
        return workload_module(self.kernel).reference(self.q, self.keys, self.rows, rule, *self.options)

    def density(self, rule: TileRule) -> float:
        """Return the share of the causal tiles that is kept."""
        causal = Grid(self.rows[0], self.keys.shape[2], rule.tile).causal
        return (self.select_tiles(rule).float().mean() / causal.float().mean()).item()

    def lists(self, rule: TileRule, variant: Variant = NONE) -> tuple[Tensor, Tensor]:
        """Return one list per query tile and group of heads that select alike."""
        choice = Tiles(self.select_tiles(rule, variant)[0], rule.tile, shared=self.shared)
        return tile_lists(choice, self.q.shape[2], self.keys.shape[2])  # on the GPU, as the engine makes them

    def attention(self, rule: TileRule, indptr: Tensor, indices: Tensor) -> Tensor:
        inputs = self.q, self.keys, self.values, self.rows, indptr, indices
        out: Tensor = workload_module("tile_attention").launch(*inputs, rule.tile, rule.tile)
        return out

    def past(self, rule: TileRule) -> float:
        """Return the share of the pages before the chunk that any union reads."""
        chunk = self.q.shape[2] // rule.block
        return union_of(self.select_tiles(rule), self.group)[..., :-chunk].float().mean().item()

    def pages(self, rule: TileRule, variant: Variant = NONE, means: Any = None) -> PageLists:
        """Return one list per request and GQA group (CompactAttention), with `means` kept from earlier chunks."""
        if means is not None:
            past = self.keys.shape[2] - self.q.shape[2]
            variant = {**variant, "means": workload_module(self.kernel).pooled(self.keys, rule.block, means, past)}
        union = union_of(self.select_tiles(rule, variant), self.group)
        return page_table(union, self.keys.shape[1], self.group, self.keys.shape[2] // rule.block, rule.block)

    def paged(self, pages: PageLists) -> Tensor:
        out: Tensor = workload_module("page_list_attention").launch(self.q, self.keys, self.values, self.rows, pages)
        return out

    def prompt(self, rule: TileRule) -> Tensor:
        """Compute selection, lists and attention."""
        return self.attention(rule, *self.lists(rule))

    def chunk(self, rule: TileRule, means: Any = None) -> Tensor:
        """Compute selection, page table and attention."""
        return self.paged(self.pages(rule, NONE, means))

    @property
    def group(self) -> int:
        return self.q.shape[1] // self.keys.shape[1]

    def work(self, name: str, rule: TileRule, operations: float) -> KernelWorkload:
        """Describe the work; `operations` are the minimum multiply-adds."""
        shape: dict[str, Any] = {"rows": self.q.shape[2], "keys": self.keys.shape[2], "batch": len(self.q)}
        shape |= {"heads": (self.q.shape[1], self.keys.shape[1]), "block": rule.block, "tile": rule.tile}
        shape |= {"mass": rule.mass, "part": rule.part}
        return KernelWorkload(name, shape, 2 * operations, float(self.q.nbytes + self.keys.nbytes))


def bfla(against: list[str], tried: Sequence[Variant], unit: int = 1024) -> Iterator[KernelWorkload]:
    """Yield blocks of 256 in flattened groups of 64, the paper's sizes."""
    flat, (heads, kv_heads) = unit // 16, workloads.HEADS
    for length, parts in TILED:
        tokens, tile = length * unit, parts * unit // 1024
        choosing = _prompt("choose_bfla", tokens, (flat,), heads // kv_heads)
        rule = TileRule(unit // 4, tile, 0.9, local=unit // 2 // tile, sink=1, stride=16)
        rule = with_density(rule, "mass", choosing.density, DENSITY)
        name, operations = f"{length}K, tiles of {tile}", heads * tokens**2 / 2 * workloads.WIDTH / flat
        yield _tiled(choosing, name, rule, operations, tried, slow=False)
        operations += heads * tokens**2 / 2 * DENSITY * 2 * workloads.WIDTH
        both = choosing.work(f"choice and attention, {name}", rule, operations)
        both.enter("ours", partial, choosing.prompt, rule)
        both.enter_dense(against, choosing.q, choosing.keys, choosing.values)
        yield both


def xattention(against: list[str], tried: Sequence[Variant], unit: int = 1024) -> Iterator[KernelWorkload]:
    """Yield blocks of 128 with strides 8 and 16, also with products in float8.

    "differs": tiles that only one of both selections keeps, relative to those that the exact one keeps.
    """
    for length, stride in product(LENGTHS, STRIDES):
        tokens, block = length * unit, unit // 8
        choosing = _prompt("choose_xattention", tokens, (stride,), 1)
        rule = with_density(TileRule(block, block, 0.9, first=True), "mass", choosing.density, DENSITY)
        operations = workloads.HEADS[0] * tokens**2 / 2 * workloads.WIDTH / stride
        work = _tiled(choosing, f"{length}K, stride {stride}", rule, operations, tried, slow=length > SLOW)
        rounded = replace(choosing, options=(stride, 8))  # a different choice, close to the exact one
        work.enter(IN_8_BITS, partial, rounded.lists, rule)
        exact = choosing.select_tiles(rule)
        work.shape["differs"] = (exact ^ rounded.select_tiles(rule)).sum().item() / exact.sum().item()
        yield work


def flash_prefill(against: list[str], tried: Sequence[Variant], unit: int = 1024) -> Iterator[KernelWorkload]:
    """Yield a chunk of 1024, batch 8, 16/4 heads, 128K tokens in pages of 128 (CompactAttention).

    Selection, union over the chunk and the GQA group, page table. Mean keys of earlier chunks are kept, as in the
    engine (`core.kv`).
    """
    (batch, heads, kv_heads), tokens, size = workloads.CHUNK, LENGTHS[-1] * unit, unit // 8
    rows = torch.arange(tokens - unit, tokens, device=DEVICE).expand(batch, -1).contiguous()
    keys, values = (numbers(batch, kv_heads, tokens, workloads.WIDTH) for _ in range(2))
    choosing = SelectionKernel("choose_flash_prefill", numbers(batch, heads, unit, workloads.WIDTH), keys, values, rows)
    for share in SHARES:
        rule = TileRule(size, size, part=0.5, whole=True, local=3, sink=2)
        rule = with_density(rule, "part", choosing.past, share)
        name = f"chunk of {unit}, {share:.0%} of {LENGTHS[-1]}K pages"
        work = choosing.work(name, rule, batch * heads * unit * (tokens / size) * workloads.WIDTH)
        means = workload_module(choosing.kernel).pooled(keys, size)
        for label, variant in labelled(tried):
            work.enter(label, partial, choosing.pages, rule, variant, means)
        work.enter(ANEW, partial, choosing.pages, rule)
        work.enter("torch", partial, choosing.torch, rule)
        work.enter(FEEDS, partial, choosing.paged, choosing.pages(rule))
        yield work
        seen = batch * heads * unit * (share * (tokens - unit) + unit / 2)
        both = choosing.work(f"choice and attention, {name}", rule, work.flops / 2 + 2 * seen * workloads.WIDTH)
        both.enter("ours", partial, choosing.chunk, rule, means)
        both.enter(ANEW, partial, choosing.chunk, rule)
        both.enter_torch(against, choosing.q, choosing.keys, choosing.values, label=", dense")
        yield both


def _prompt(kernel: str, tokens: int, options: tuple[int, ...], shared: int) -> SelectionKernel:
    heads, kv_heads = workloads.HEADS
    q, keys, values = (numbers(1, n, tokens, workloads.WIDTH) for n in (heads, kv_heads, kv_heads))
    return SelectionKernel(kernel, q, keys, values, torch.arange(tokens, device=DEVICE)[None], options, shared)


def _tiled(
    choosing: SelectionKernel, name: str, rule: TileRule, operations: float, tried: Sequence[Variant], slow: bool
) -> KernelWorkload:
    """Return a workload of a selection with its lists, the same in torch unless it is too `slow`, and the attention."""
    work = choosing.work(name, rule, operations)
    for label, variant in labelled(tried):
        work.enter(label, partial, choosing.lists, rule, variant)
    if not slow:
        work.enter("torch", partial, choosing.torch, rule)
    work.enter(FEEDS, partial, choosing.attention, rule, *choosing.lists(rule))
    return work


def with_density(rule: TileRule, threshold: str, density: Callable[[TileRule], float], target: float) -> TileRule:
    """Set "mass" of `rule`, or its "part" of the largest, so that its selection has the density `target`."""

    def at(value: float) -> TileRule:
        return replace(rule, mass=value) if threshold == "mass" else replace(rule, part=1 - value)

    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if density(at(middle)) < target else (low, middle)
    return at((low + high) / 2)


WORKLOADS = {"choose_bfla": bfla, "choose_flash_prefill": flash_prefill, "choose_xattention": xattention}
