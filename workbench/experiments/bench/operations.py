"""Whole models beside stock transformers, on the same GPU in one run: Llama-3.1-8B's shape, random weights.

question    time to the first token of a 50-token question over 4K to 64K tokens of cached blocks that are shifted
recompute   27K tokens of cached blocks, 15% of them chosen and recomputed, and the question: `bench.recompute`
prefill     128K tokens at once: the tiles that BFLA keeps, beside all of them
decode      one token of each of eight answers over a shared context of 32K tokens
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from workbench.core.errors import BadInput
from workbench.core.plan import Site
from workbench.core.tile_grid import Grid
from workbench.core.tiles import Tiles
from workbench.engine.compile import fused
from workbench.engine.cuda_graphs import Runner
from workbench.engine.forward import all_rows, prefill_many
from workbench.experiments.bench import stock
from workbench.experiments.bench.pools import BLOCK, describe, filled, token_of
from workbench.experiments.bench.recompute import QUESTION, recompute
from workbench.experiments.bench.run import gpu_facts
from workbench.experiments.bench.timing import roof
from workbench.experiments.bench.whole_model import GPU, Candidate, Comparison, Sample, Scene, build, clock, measured
from workbench.experiments.bench.workloads import Workload
from workbench.methods.sparse.bfla import Bfla

DENSITY = 0.15  # of the causal tiles that BFLA keeps
DEEP = 8  # layers by which the density is set
CONTEXTS = (32, 4, 8, 16, 64)  # units under the question; variants of ours are timed on the first


def paged(scene: Scene, context: int, question: int, graphs: bool, compiled: bool, candidate: Candidate) -> Sample:
    """Compute the question over a pool: page table, copy to the device, forward pass, token on the host."""
    pool, cached = filled(scene, context, question, candidate)
    runner = Runner(scene.model, pool, graphs and GPU, compiled and graphs and GPU)
    ids = scene.ids(question)

    def first_token() -> int:
        prompt = pool.open(cached, question)
        token = int(runner.prefill([prompt], [ids])[0].argmax())
        pool.close(prompt)
        for captured in runner.captured.values():
            describe(candidate, captured)
        return token

    return partial(clock, first_token)


def question(scene: Scene) -> Iterator[Comparison]:
    for length in CONTEXTS:
        context, count = length * scene.unit, min(QUESTION, scene.unit)
        pairs = count * context + count * (count + 1) / 2
        shape = {"context": context, "question": count, "block": min(BLOCK, scene.unit)}
        name = f"50-token question over {length}K cached"
        candidates = [Candidate("ours", partial(paged, scene, context, count, True, True), 30)]
        if length == CONTEXTS[0]:
            candidates += [
                Candidate("ours, layers not fused", partial(paged, scene, context, count, True, False), 30),
                Candidate("ours, nor captured", partial(paged, scene, context, count, False, False), 10),
            ]
        candidates += [
            Candidate("transformers, ready prefix cache", partial(stock.prefix, scene, context, count), 15),
            Candidate("transformers, full prefill", partial(stock.whole, scene, context + count, ""), 4),
        ]
        yield Workload(name, shape, scene.flops(count, pairs), scene.bytes(context)), candidates


@dataclass
class Counted:
    """A sparse method that counts the tiles it keeps, on the device."""

    over: Any
    counts: list[Tensor] = field(default_factory=list)  # [2] of a call: kept and causal tiles

    @property
    def size(self) -> int:
        return int(self.over.size)

    def __call__(self, queries: Tensor, keys: Tensor, rows: Tensor, site: Site) -> Tiles:
        tiles: Tiles = self.over(queries, keys, rows, site)
        causal = Grid(rows.to(keys.device), keys.shape[1], self.size).causal.sum() * len(queries)
        self.counts.append(torch.stack((tiles.kept.sum(), causal)))
        return tiles

    @property
    def density(self) -> float:
        """Return the share of the causal tiles that was kept, and begin to count afresh."""
        kept, causal = torch.stack(self.counts).sum(0).tolist()
        self.counts = []
        return kept / causal


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
        prefill_many(model, [all_rows(model, scene.ids(tokens), sparse=counted, num_layers=layers)])
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
        (output,) = prefill_many(scene.model, [all_rows(scene.model, scene.ids(count), sparse=method)], 1)
        return token_of(output, candidate)

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


def whole_prompt(scene: Scene) -> Iterator[Comparison]:
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


def decode(scene: Scene) -> Iterator[Comparison]:
    context, batch = 32 * scene.unit, 8
    shape = {"context": context, "batch": batch, "shared": True}
    flops = scene.flops(batch, float(batch * context), batch)
    candidates = [
        Candidate("ours", partial(answers, scene, context, batch, True), 4),
        Candidate("ours, layers not fused", partial(answers, scene, context, batch, False), 4),
        Candidate("transformers", partial(stock.answers, scene, context, batch), 10),
    ]
    yield Workload("a token of each of 8 over 32K", shape, flops, scene.bytes(context)), candidates


def answers(scene: Scene, context: int, batch: int, compiled: bool, candidate: Candidate, count: int = 33) -> Sample:
    """Decode eight requests over the same pages; a sample is the mean of some steps, fetching of tokens included."""
    own = min(QUESTION, scene.unit) + count
    pool, cached = filled(scene, context, batch * (own + 64), candidate)
    runner, ids = Runner(scene.model, pool, compile=compiled and GPU), scene.ids(own - count)

    def sample() -> float:
        prompts = [pool.open(cached, own) for _ in range(batch)]
        logits = runner.prefill(prompts, [ids] * batch)
        ms = clock(lambda: list(runner.decode(prompts, logits, count))) / (count - 1)
        for prompt in prompts:
            pool.close(prompt)
        for bucket, captured in runner.captured.items():
            if bucket.reserve:
                describe(candidate, captured)
        return ms

    return sample


OPERATIONS = {"question": question, "recompute": recompute, "prefill": whole_prompt, "decode": decode}


def run(name: str, against: list[str], only: str = "") -> Iterator[dict[str, Any]]:
    """Yield the report as it grows, in the form of `bench.run.run`. BadInput where there is no GPU."""
    if not GPU:
        raise BadInput("whole models are timed on a GPU, and there is none here")
    ceiling = roof()
    yield gpu_facts() | {"kernel": name, "copy_tbps": ceiling.copy / 1e12, "product_tflops": ceiling.product / 1e12}
    scene = Scene(build(), against)
    for work, candidates in OPERATIONS[name](scene):
        if only in work.name:
            yield measured(work, candidates, ceiling)
