"""Prefill of a long prompt at once: over the tiles that BFLA keeps at a given density, and over all of them."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from workbench.core.plan import Plan, Site
from workbench.core.tile_grid import Grid
from workbench.core.tiles import Tiles
from workbench.engine.assembly import empty
from workbench.engine.compile import fused
from workbench.engine.forward import prefill
from workbench.experiments.bench import stock
from workbench.experiments.bench.whole_model import GPU, Candidate, Comparison, Sample, Scene, clock
from workbench.experiments.bench.workloads import Workload
from workbench.methods.sparse.bfla import Bfla

DENSITY = 0.15
DEEP = 8  # layers by which the density is set


@dataclass
class Counted:
    """A sparse method that counts the tiles it keeps, on the device."""

    over: Any
    kept: list[Tensor] = field(default_factory=list)
    causal: list[Tensor] = field(default_factory=list)

    @property
    def size(self) -> int:
        return int(self.over.size)

    def __call__(self, queries: Tensor, keys: Tensor, rows: Tensor, site: Site) -> Tiles:
        tiles: Tiles = self.over(queries, keys, rows, site)
        self.kept.append(tiles.kept.sum())
        self.causal.append(Grid(rows.to(keys.device), keys.shape[1], self.size).causal.sum() * len(queries))
        return tiles

    @property
    def density(self) -> float:
        """Return the share of the causal tiles that was kept, and begin to count afresh."""
        share = float(sum(self.kept) / sum(self.causal))
        self.kept, self.causal = [], []
        return share


def at_density(scene: Scene, tokens: int, method: Bfla) -> Bfla:
    """Return `method` with the mass at which it keeps at least DENSITY of the causal tiles, over a few layers.

    The search halves a range of the exponent in mass = 1 - 10^-exponent: in an untrained model most of the mass lies in
    few blocks and the rest is spread over very many, so only masses very near 1 change the density.
    """
    model = scene.model
    counted = Counted(method)
    layers = min(DEEP, model.config.num_hidden_layers)
    low, high = 0.0, 7.0
    for _ in range(7):
        exponent = (low + high) / 2
        counted.over = method.with_threshold(1 - 10**-exponent)
        plan = Plan(torch.arange(tokens), sparse=counted, num_layers=layers)
        prefill(model, scene.ids(tokens), plan, empty(model, tokens))
        low, high = (low, exponent) if counted.density > DENSITY else (exponent, high)
    return method.with_threshold(1 - 10**-high)


def long(scene: Scene, tokens: int, sparse: Bfla | None, compiled: bool, candidate: Candidate) -> Sample:
    """Prefill a whole prompt at once; warm up on a part of it where layers are not compiled for its length."""
    if compiled and GPU:
        candidate.after.enter_context(fused(scene.model))
    method = Counted(at_density(scene, tokens, sparse)) if sparse else None
    if method:
        candidate.facts["mass"] = method.over.mass

    def first_token(count: int) -> int:
        kv = empty(scene.model, count)
        output = prefill(scene.model, scene.ids(count), Plan(torch.arange(count), sparse=method), kv, logits_to_keep=1)
        assert output.logits is not None
        candidate.facts["executors"] = sorted(set(output.backends.values()))
        return int(output.logits[-1].argmax())

    def sample() -> float:
        ms = clock(partial(first_token, tokens))
        if method:
            candidate.facts["density"] = method.density
        return ms

    if candidate.warmed:
        first_token(8 * scene.unit)
        if method:
            candidate.facts["density"] = method.density
    return sample


def prefill_long(scene: Scene) -> Iterator[Comparison]:
    tokens, block = 128 * scene.unit, min(256, scene.unit)
    shape = {"tokens": tokens, "block": block, "tile": block // 2, "flat": block // 4}
    method = Bfla(block=block, tile=block // 2, flat=block // 4)
    flops = scene.flops(tokens, DENSITY * tokens * (tokens + 1) / 2)
    candidates = [
        Candidate("ours", partial(long, scene, tokens, method, True), 2),
        Candidate("ours, layers not fused", partial(long, scene, tokens, method, False), 1, warmed=True),
        Candidate("ours, dense", partial(long, scene, tokens, None, True), 1),
    ]
    for name in stock.BACKENDS:
        if name in scene.against:
            whole = partial(stock.whole, scene, tokens, name)
            candidates.append(Candidate(f"transformers, dense ({name})", whole, 1, warmed=True))
    yield Workload("128K at once, BFLA at 15%", shape, flops, scene.bytes(tokens)), candidates
