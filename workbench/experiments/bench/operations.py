"""Whole models beside stock transformers, on the same card in one run: Llama-3.1-8B's shape, random weights.

question    time to the first token of a 50-token question over 4K to 64K tokens of cached blocks that have to move
recompute   27K tokens of cached blocks, 15% of them computed again, and the question (FusionRAG's online step)
prefill     128K tokens at once: the tiles that BFLA keeps, beside all of them
decode      one token of each of eight answers over a shared context of 32K tokens
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from workbench.core.blocks import Block
from workbench.core.errors import BadInput
from workbench.core.plan import Plan
from workbench.engine.compile import fused
from workbench.engine.cuda_graphs import Runner
from workbench.engine.forward import prefill
from workbench.engine.paged_pool import Pool
from workbench.experiments.bench import stock
from workbench.experiments.bench.one_shot import prefill_long
from workbench.experiments.bench.run import card
from workbench.experiments.bench.timing import roof
from workbench.experiments.bench.whole_model import GPU, Contestant, Entry, Sample, Scene, build, clock, measured
from workbench.experiments.bench.workloads import Workload

BLOCK, QUESTION = 512, 50  # tokens of a cached block, and of the question
CONTEXTS = (32, 4, 8, 16, 64)  # units under the question; variants of ours are timed on the first


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


def paged(scene: Scene, context: int, question: int, graphs: bool, compiled: bool, one: Contestant) -> Sample:
    """The question over a pool: page table, copy to the device, forward pass, token on the host."""
    pool, cached = filled(scene, context, question, one)
    runner, ids = Runner(scene.model, pool, graphs and GPU, compiled and GPU), scene.ids(question)

    def first_token() -> int:
        prompt = pool.open(cached, question)
        token = int(runner.prefill([prompt], [ids])[0].argmax())
        pool.close(prompt)
        for captured in runner.captured.values():
            one.facts |= {"warm_up_s": captured.warm_up, "capture_s": captured.capture}
            one.facts["executors"] = [captured.batch.backend]
        return token

    return partial(clock, first_token)


def question(scene: Scene) -> Iterator[Entry]:
    for length in CONTEXTS:
        context, count = length * scene.unit, min(QUESTION, scene.unit)
        pairs = count * context + count * (count + 1) / 2
        shape = {"context": context, "question": count, "block": min(BLOCK, scene.unit)}
        name = f"50-token question over {length}K cached"
        others = [
            Contestant("ours, layers not fused", partial(paged, scene, context, count, True, False), 30),
            Contestant("ours, nor captured", partial(paged, scene, context, count, False, False), 10),
        ]
        yield (
            Workload(name, shape, scene.flops(count, pairs), scene.bytes(context)),
            [
                Contestant("ours", partial(paged, scene, context, count, True, True), 30),
                *(others if length == CONTEXTS[0] else []),
                Contestant("transformers, ready prefix cache", partial(stock.prefix, scene, context, count), 15),
                Contestant("transformers, full prefill", partial(stock.whole, scene, context + count, ""), 4),
            ],
        )


def recompute(scene: Scene) -> Iterator[Entry]:
    context, count = 27 * scene.unit, min(QUESTION, scene.unit)
    draw = torch.Generator().manual_seed(0)
    recompute = torch.randperm(context, generator=draw)[: int(context * 0.15)].sort().values
    rows = torch.cat((recompute, torch.arange(context, context + count)))
    pairs = float((rows + 1).sum())
    work = Workload(
        "15% of 27K computed again", {"context": context, "rows": len(rows), "question": count},
        scene.flops(len(rows), pairs), scene.bytes(context),
    )  # fmt: skip
    rivals = [name for name in stock.BACKENDS if name in scene.against] or [""]
    yield (
        work,
        [
            Contestant("ours", partial(gathered, scene, context, rows, True), 10),
            Contestant("ours, layers not fused", partial(gathered, scene, context, rows, False), 10),
            Contestant("ours, in place", partial(in_place, scene, context, recompute, count), 10),
            *(
                Contestant(
                    f"transformers, full prefill{name and f' ({name})'}",
                    partial(stock.whole, scene, context + count, name),
                    3,
                )
                for name in rivals
            ),
        ],
    )


def gathered(scene: Scene, context: int, rows: Tensor, compiled: bool, one: Contestant) -> Sample:
    """Blocks are gathered to one contiguous KV, their keys turned once; then the rows are computed over it."""
    pool, cached = filled(scene, context, 0, one)
    if compiled and GPU:
        one.after.enter_context(fused(scene.model))
    own = int(rows[-1]) + 1 - context
    tokens = scene.ids(context + own)

    def first_token() -> int:
        step = prefill(scene.model, tokens, Plan(rows), pool.gather(cached, own), logits_to_keep=1)
        one.facts["executors"] = sorted(set(step.backends.values()))
        assert step.logits is not None
        return int(step.logits[-1].argmax())

    return partial(clock, first_token)


def in_place(scene: Scene, context: int, recompute: Tensor, count: int, one: Contestant) -> Sample:
    """Cached pages stay as they are, what is computed goes to own pages; each layer puts them in order for itself."""
    pool, cached = filled(scene, context, len(recompute) + count, one)
    if GPU:
        one.after.enter_context(fused(scene.model))
    runner = Runner(scene.model, pool, graphs=False)
    ids = scene.ids(len(recompute) + count)

    def first_token() -> int:
        prompt = pool.open(cached, count, recompute)
        token = int(runner.prefill([prompt], [ids])[0].argmax())
        pool.close(prompt)
        return token

    return partial(clock, first_token)


def decode(scene: Scene) -> Iterator[Entry]:
    context, batch = 32 * scene.unit, 8
    work = Workload(
        "a token of each of 8 over 32K", {"context": context, "batch": batch, "shared": True},
        scene.flops(batch, float(batch * context), batch), scene.bytes(context),
    )  # fmt: skip
    yield (
        work,
        [
            Contestant("ours", partial(answers, scene, context, batch, True), 4),
            Contestant("ours, layers not fused", partial(answers, scene, context, batch, False), 4),
            Contestant("transformers", partial(stock.answers, scene, context, batch), 10),
        ],
    )


def answers(scene: Scene, context: int, batch: int, compiled: bool, one: Contestant, count: int = 33) -> Sample:
    """Eight requests over the same pages; a sample is the mean over a run of steps, tokens fetched on the way."""
    own = min(QUESTION, scene.unit) + count
    pool, cached = filled(scene, context, batch * (own + 64), one)
    runner, ids = Runner(scene.model, pool, compile=compiled and GPU), scene.ids(own - count)

    def sample() -> float:
        prompts = [pool.open(cached, own) for _ in range(batch)]
        logits = runner.prefill(prompts, [ids] * batch)
        taken = clock(lambda: list(runner.decode(prompts, logits, count))) / (count - 1)
        for prompt in prompts:
            pool.close(prompt)
        for bucket, captured in runner.captured.items():
            if bucket.reserve:
                one.facts |= {"warm_up_s": captured.warm_up, "capture_s": captured.capture}
                one.facts["executors"] = [captured.batch.backend]
        return taken

    return sample


OPERATIONS: Mapping[str, Callable[[Scene], Iterator[Entry]]] = {
    "question": question, "recompute": recompute, "prefill": prefill_long, "decode": decode,
}  # fmt: skip


def run(name: str, against: list[str], only: str = "") -> Iterator[dict[str, Any]]:
    """The report as it grows, in the shape of `bench.run.run`. BadInput where there is no GPU."""
    if not GPU:
        raise BadInput("whole models are timed on a GPU, and there is none here")
    ceiling = roof()
    yield card() | {"kernel": name, "copy_tbps": ceiling.copy / 1e12, "product_tflops": ceiling.product / 1e12}
    scene = Scene(build(), against)
    for work, contestants in OPERATIONS[name](scene):
        if only in work.name:
            yield measured(work, contestants, ceiling)
