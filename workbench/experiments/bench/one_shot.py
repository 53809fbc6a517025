"""A long prompt prefilled at once: the tiles that BFLA keeps at a chosen density, beside all of them."""

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
from workbench.experiments.bench.whole_model import GPU, Contestant, Entry, Sample, Scene, clock
from workbench.experiments.bench.workloads import Workload
from workbench.methods.sparse.bfla import Bfla

DENSITY = 0.15
DEEP = 8  # layers by which the density is set


@dataclass
class Counted:
    """A sparse method that counts what it keeps, on the device."""

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
        """Share of the causal tiles that was kept since it was last asked."""
        share = float(sum(self.kept) / sum(self.causal))
        self.kept, self.causal = [], []
        return share


def at_density(scene: Scene, tokens: int, method: Bfla) -> Bfla:
    """`method` with the mass at which it keeps at least DENSITY of the causal tiles, over a few layers.

    The mass is looked for by its distance to 1, on a scale of powers of ten: of a model without training most of it
    lies in few blocks, and what is left in very many.
    """
    model, found, low, high = scene.model, Counted(method), 0.0, 7.0
    deep = min(DEEP, model.config.num_hidden_layers)
    for _ in range(7):
        nines = (low + high) / 2
        found.over = method.with_threshold(1 - 10**-nines)
        prefill(
            model, scene.ids(tokens), Plan(torch.arange(tokens), sparse=found, num_layers=deep), empty(model, tokens)
        )
        low, high = (low, nines) if found.density > DENSITY else (nines, high)
    return method.with_threshold(1 - 10**-high)


def long(scene: Scene, tokens: int, sparse: Bfla | None, compiled: bool, one: Contestant) -> Sample:
    """A whole prompt at once; warmed up on a part of it where layers are not compiled for its length."""
    if compiled and GPU:
        one.after.enter_context(fused(scene.model))
    method = Counted(at_density(scene, tokens, sparse)) if sparse else None
    if method:
        one.facts["mass"] = method.over.mass

    def first_token(count: int) -> int:
        kv = empty(scene.model, count)
        step = prefill(scene.model, scene.ids(count), Plan(torch.arange(count), sparse=method), kv, logits_to_keep=1)
        assert step.logits is not None
        token = int(step.logits[-1].argmax())
        one.facts["executors"] = sorted(set(step.backends.values()))
        return token

    def sample() -> float:
        taken = clock(partial(first_token, tokens))
        if method:
            one.facts["density"] = method.density
        return taken

    if one.warmed:
        first_token(8 * scene.unit)
        if method:
            one.facts["density"] = method.density
    return sample


def prefill_long(scene: Scene) -> Iterator[Entry]:
    tokens = 128 * scene.unit
    pairs = DENSITY * tokens * (tokens + 1) / 2
    block = min(256, scene.unit)
    method = Bfla(block=block, tile=block // 2, flat=block // 4)
    work = Workload(
        "128K at once, BFLA at 15%", {"tokens": tokens, "block": block, "tile": block // 2, "flat": block // 4},
        scene.flops(tokens, pairs), scene.bytes(tokens),
    )  # fmt: skip
    yield (
        work,
        [
            Contestant("ours", partial(long, scene, tokens, method, True), 2),
            Contestant("ours, layers not fused", partial(long, scene, tokens, method, False), 1, warmed=True),
            Contestant("ours, dense", partial(long, scene, tokens, None, True), 1),
            *(
                Contestant(f"transformers, dense ({name})", partial(stock.whole, scene, tokens, name), 1, warmed=True)
                for name in stock.BACKENDS
                if name in scene.against
            ),
        ],
    )
