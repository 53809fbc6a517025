"""Whole models beside stock transformers, on the same card in one run: Llama-3.1-8B's shape, random weights.

question    time to the first token of a 50-token question over 32K tokens of cached blocks that have to move
recompute   27K tokens of cached blocks, 15% of them computed again, and the question (FusionRAG's online step)
prefill     128K tokens at once: the tiles that BFLA keeps, beside all of them
decode      one token of each of eight answers over a shared context of 32K tokens
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import DynamicCache, PreTrainedModel

from workbench.bench.run import card
from workbench.bench.timing import roof
from workbench.bench.whole_model import DEVICE, Contestant, Sample, Scene, build, clock, measured
from workbench.bench.workloads import Workload
from workbench.blocks import Block
from workbench.engine import empty, prefill
from workbench.errors import BadInput
from workbench.graphs import Runner
from workbench.grid import Grid
from workbench.plan import Plan, Site
from workbench.pool import Pool
from workbench.sparse.bfla import Bfla
from workbench.tiles import Tiles

BLOCK, QUESTION = 512, 50  # tokens of a cached block, and of the question
BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
DENSITY = 0.15

Entry = tuple[Workload, list[Contestant]]


def backend(name: str) -> AbstractContextManager[Any]:
    """Torch's own choice of an attention for "", else the one of that name."""
    return sdpa_kernel(BACKENDS[name]) if name else nullcontext()


def whole(scene: Scene, count: int, name: str, one: Contestant) -> Sample:
    """Stock transformers compute the whole prompt."""

    def first_token(ids: Tensor) -> int:
        scene.model.set_attn_implementation("sdpa")
        with backend(name), torch.no_grad():
            return int(scene.model(ids, use_cache=True, logits_to_keep=1).logits[0, -1].argmax())

    ids = scene.ids(count).to(DEVICE)[None]
    if one.warmed:
        first_token(ids[:, : 8 * scene.unit])
    return lambda: clock(partial(first_token, ids))


def prefix(scene: Scene, context: int, question: int, _: Contestant) -> Sample:
    """Stock transformers compute the question over a ready cache of this very context."""
    cache, ids = stock_cache(scene.model, 1, context), scene.ids(question).to(DEVICE)[None]

    def first_token() -> int:
        scene.model.set_attn_implementation("sdpa")
        with torch.no_grad():
            out = scene.model(ids, past_key_values=cache, logits_to_keep=1)
        cache.crop(-question)
        return int(out.logits[0, -1].argmax())

    return partial(clock, first_token)


def stock_cache(model: PreTrainedModel, batch: int, length: int) -> DynamicCache:
    """A cache of random numbers: what it holds takes no time."""
    config, cache = model.config, DynamicCache(config=model.config)
    shape = batch, config.num_key_value_heads, length, config.head_dim
    for layer in range(config.num_hidden_layers):
        keys, values = (torch.randn(shape, dtype=model.dtype, device=DEVICE) for _ in range(2))
        cache.update(keys, values, layer)
    return cache


def filled(scene: Scene, context: int, own: int, one: Contestant) -> tuple[Pool, list[Any]]:
    """A pool with a context of blocks of BLOCK tokens, in another order than they were encoded, and room for `own`
    more tokens."""
    size = min(BLOCK, scene.unit)
    ids = scene.ids(context).split(size)
    pool = Pool(scene.model, 2 + sum(-(-len(run) // 64) for run in ids) + -(-own // 64))
    blocks = [Block(tuple(run.tolist())) for run in ids]
    cached: list[Any] = []
    encoding = clock(lambda: cached.extend(pool.encode(scene.model, blocks)))
    one.facts["encode_s"] = encoding / 1e3
    return pool, cached[::-1]


def paged(scene: Scene, context: int, question: int, graphs: bool, one: Contestant) -> Sample:
    """The question over a pool: page table, copy to the device, forward pass, token on the host."""
    pool, cached = filled(scene, context, question, one)
    runner, ids = Runner(scene.model, pool, graphs and DEVICE == "cuda"), scene.ids(question)

    def first_token() -> int:
        prompt = pool.open(cached, question)
        token = int(runner.prefill([prompt], [ids])[0].argmax())
        pool.close(prompt)
        for captured in runner.captured.values():
            one.facts |= {"warm_up_s": captured.warm_up, "capture_s": captured.capture}
        return token

    return partial(clock, first_token)


def question(scene: Scene) -> Iterator[Entry]:
    context, count = 32 * scene.unit, min(QUESTION, scene.unit)
    pairs = count * context + count * (count + 1) / 2
    work = Workload(
        "50-token question over 32K cached", {"context": context, "question": count, "block": min(BLOCK, scene.unit)},
        scene.flops(count, pairs), scene.bytes(context),
    )  # fmt: skip
    yield (
        work,
        [
            Contestant("ours", partial(paged, scene, context, count, True), 30),
            Contestant("ours, no graph", partial(paged, scene, context, count, False), 10),
            Contestant("transformers, ready prefix cache", partial(prefix, scene, context, count), 15),
            Contestant("transformers, full prefill", partial(whole, scene, context + count, ""), 4),
        ],
    )


def recompute(scene: Scene) -> Iterator[Entry]:
    context, count = 27 * scene.unit, min(QUESTION, scene.unit)
    draw = torch.Generator().manual_seed(0)
    again = torch.randperm(context, generator=draw)[: int(context * 0.15)].sort().values
    rows = torch.cat((again, torch.arange(context, context + count)))
    pairs = float((rows + 1).sum())
    work = Workload(
        "15% of 27K computed again", {"context": context, "rows": len(rows), "question": count},
        scene.flops(len(rows), pairs), scene.bytes(context),
    )  # fmt: skip
    rivals = [name for name in BACKENDS if name in scene.against] or [""]
    yield (
        work,
        [
            Contestant("ours", partial(gathered, scene, context, rows), 10),
            Contestant("ours, in place", partial(in_place, scene, context, again, count), 10),
            *(
                Contestant(
                    f"transformers, full prefill{name and f' ({name})'}",
                    partial(whole, scene, context + count, name),
                    3,
                )
                for name in rivals
            ),
        ],
    )


def gathered(scene: Scene, context: int, rows: Tensor, one: Contestant) -> Sample:
    """Blocks are gathered to one contiguous KV, their keys turned once; then the rows are computed over it."""
    pool, cached = filled(scene, context, 0, one)
    own = int(rows[-1]) + 1 - context
    tokens = scene.ids(context + own)

    def first_token() -> int:
        step = prefill(scene.model, tokens, Plan(rows), pool.gather(cached, own), logits_to_keep=1)
        one.facts["executors"] = sorted(set(step.executors.values()))
        assert step.logits is not None
        return int(step.logits[-1].argmax())

    return partial(clock, first_token)


def in_place(scene: Scene, context: int, again: Tensor, count: int, one: Contestant) -> Sample:
    """Cached pages are read where they lie; what is computed goes to own pages."""
    pool, cached = filled(scene, context, len(again) + count, one)
    runner = Runner(scene.model, pool, graphs=False)
    ids = scene.ids(len(again) + count)

    def first_token() -> int:
        prompt = pool.open(cached, count, again)
        token = int(runner.prefill([prompt], [ids])[0].argmax())
        pool.close(prompt)
        return token

    return partial(clock, first_token)


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
    """`method` with the mass at which it keeps DENSITY of the causal tiles in the first layer."""
    model, found, low, high = scene.model, Counted(method), 0.0, 1.0
    for _ in range(8):
        found.over = method.turned((low + high) / 2)
        prefill(model, scene.ids(tokens), Plan(torch.arange(tokens), tiles=found, depth=2), empty(model, tokens))
        low, high = (low, found.over.mass) if found.density > DENSITY else (found.over.mass, high)
    return method.turned(high)


def long(scene: Scene, tokens: int, sparse: Bfla | None, one: Contestant) -> Sample:
    """A whole prompt at once; warmed up on a part of it."""
    method = Counted(at_density(scene, tokens, sparse)) if sparse else None
    if method:
        one.facts["mass"] = method.over.mass

    def first_token(count: int) -> int:
        kv = empty(scene.model, count)
        step = prefill(scene.model, scene.ids(count), Plan(torch.arange(count), tiles=method), kv, logits_to_keep=1)
        assert step.logits is not None
        token = int(step.logits[-1].argmax())
        one.facts["executors"] = sorted(set(step.executors.values()))
        return token

    def sample() -> float:
        taken = clock(partial(first_token, tokens))
        if method:
            one.facts["density"] = method.density
        return taken

    first_token(min(tokens, 8 * scene.unit))
    if method:
        assert method.density > 0
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
            Contestant("ours", partial(long, scene, tokens, method), 3, warmed=True),
            Contestant("ours, dense", partial(long, scene, tokens, None), 2, warmed=True),
            *(
                Contestant(f"transformers, dense ({name})", partial(whole, scene, tokens, name), 1, warmed=True)
                for name in BACKENDS
                if name in scene.against
            ),
        ],
    )


def decode(scene: Scene) -> Iterator[Entry]:
    context, batch = 32 * scene.unit, 8
    work = Workload(
        "a token of each of 8 over 32K", {"context": context, "batch": batch, "shared": True},
        scene.flops(batch, float(batch * context), batch), scene.bytes(context),
    )  # fmt: skip
    yield (
        work,
        [
            Contestant("ours", partial(answers, scene, context, batch), 4),
            Contestant("transformers", partial(stock_answers, scene, context, batch), 10),
        ],
    )


def answers(scene: Scene, context: int, batch: int, one: Contestant, count: int = 33) -> Sample:
    """Eight requests over the same pages; a sample is the mean over a run of steps, tokens fetched on the way."""
    own = min(QUESTION, scene.unit) + count
    pool, cached = filled(scene, context, batch * (own + 64), one)
    runner, ids = Runner(scene.model, pool), scene.ids(own - count)

    def sample() -> float:
        prompts = [pool.open(cached, own) for _ in range(batch)]
        logits = runner.prefill(prompts, [ids] * batch)
        taken = clock(lambda: list(runner.decode(prompts, logits, count))) / (count - 1)
        for prompt in prompts:
            pool.close(prompt)
        for bucket, captured in runner.captured.items():
            if bucket.room:
                one.facts |= {"warm_up_s": captured.warm_up, "capture_s": captured.capture}
        return taken

    return sample


def stock_answers(scene: Scene, context: int, batch: int, _: Contestant) -> Sample:
    """A cache for each request, as transformers keeps it."""
    cache = stock_cache(scene.model, batch, context)
    ids = scene.ids(batch).to(DEVICE)[:, None]

    def step() -> None:
        scene.model.set_attn_implementation("sdpa")
        with torch.no_grad():
            logits = scene.model(ids, past_key_values=cache, logits_to_keep=1).logits
        ids.copy_(logits[:, -1:].argmax(-1))

    return partial(clock, step)


OPERATIONS: Mapping[str, Callable[[Scene], Iterator[Entry]]] = {
    "question": question, "recompute": recompute, "prefill": prefill_long, "decode": decode,
}  # fmt: skip


def run(name: str, against: list[str], only: str = "") -> Iterator[dict[str, Any]]:
    """The report as it grows, in the shape of `bench.run.run`. BadInput where there is no GPU."""
    if DEVICE != "cuda":
        raise BadInput("whole models are timed on a GPU, and there is none here")
    ceiling = roof()
    yield card() | {"kernel": name, "copy_tbps": ceiling.copy / 1e12, "product_tflops": ceiling.product / 1e12}
    scene = Scene(build(), against)
    for work, contestants in OPERATIONS[name](scene):
        if only in work.name:
            yield measured(work, contestants, ceiling)
