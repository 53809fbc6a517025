"""How TTFT, throughput and memory grow with context, blocks, batch and question: Llama-3.1-8B's shape, on a GPU.

    python data/benchmarks/scale.py                 all axes, or --axes context batch
    python data/benchmarks/scale.py --tiny          a tiny shape, for a try on a CPU

writes timings and counts of experiment "scale" into a results folder; no point starts after `--seconds`.

Contexts are cached blocks in another order than they were encoded in, so their keys are rerotated. `context`,
`question` and `blocks`: TTFT of one request, from an idle GPU to the token on the host, and `replay_ms` of the captured
step alone. `batch`: one decoding step of several requests over a shared context. `peak_gb` is the peak tensor memory,
`pool_gb` the part taken by the pool's KV.
"""

import gc
from collections.abc import Iterator, Mapping, Sequence
from time import perf_counter
from typing import Any

import torch
from script import options, writer

from workbench.engine.graphs.cuda_graphs import Runner
from workbench.engine.pages.paged_prompt import Cached
from workbench.experiments.bench import timing
from workbench.experiments.bench.models.over_pages import time_captured
from workbench.experiments.bench.models.whole_model import GPU, Scene, clock, filled_pool, scene_of

QUESTION, CONTEXT, BLOCK, PAGE = 50, 32, 512, 64  # tokens, units, tokens, tokens
AXES = {
    "context": (1, 2, 4, 8, 16, 32, 64, 128),  # units of 1024 tokens
    "question": (1, 16, 50, 128, 256, 512, 1024),  # tokens
    "blocks": (8, 16, 32, 64, 128, 256, 512),  # blocks of one context
    "batch": (1, 2, 4, 8, 16, 32, 64),  # requests decoded at once
}
STEPS = 33  # decoding steps
MEASURED = ("replay_ms", "encode_ms", "pool_gb", "peak_gb", "tokens_per_s")  # measures of a point besides its time


def curves(scene: Scene, axes: Mapping[str, Sequence[int]], runs: int = 30) -> Iterator[dict[str, Any]]:
    """Yield the points of every axis, smallest first."""
    for axis, values in axes.items():
        for x in values:
            yield {"axis": axis, "x": x} | point(scene, axis, x, runs)


def result_rows(point: Mapping[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return a point as a `results.Timing` row, and its other measures as `results.Count` rows."""
    setting = {name: point[name] for name in ("axis", "x", "context", "question", "block")}
    about = {"setting": setting, "workload": f"{point['axis']} {point['x']}", "candidate": "ours"}
    timed = about | {name: point.get(name) for name in ("ms", "p5", "p95", "least", "most", "runs")}
    there = [name for name in MEASURED if point.get(name) is not None]
    counts = {"setting": setting, "kind": point["axis"], "at": float(point["x"])}
    return timed, [{**counts, "measure": name, "value": point[name]} for name in there]


def point(scene: Scene, axis: str, x: int, runs: int) -> dict[str, Any]:
    """Measure one point: `x` tokens of context in units, tokens of the question, blocks, or requests."""
    context = (x if axis == "context" else CONTEXT) * scene.unit
    question = x if axis == "question" else min(QUESTION, scene.unit)
    block = context // x if axis == "blocks" else min(BLOCK, scene.unit)
    own = x * (question + STEPS + PAGE) if axis == "batch" else question + PAGE
    if GPU:
        torch.cuda.reset_peak_memory_stats()
    facts: dict[str, Any] = {}
    pool, cached = filled_pool(scene, context, own, facts, block)
    runner = Runner(scene.model, pool)
    if axis == "batch":
        found = _decoded(scene, runner, cached, x, question, runs)
    else:
        found = _first_tokens(scene, runner, cached, question, runs)
    found |= {"context": context, "question": question, "block": block, "encode_ms": 1e3 * facts["encode_s"]}
    found |= {"pool_gb": sum(t.nbytes for t in (*pool.keys, *pool.values)) / 1e9}
    found |= {"peak_gb": torch.cuda.max_memory_allocated() / 1e9} if GPU else {}
    del runner, pool, cached
    gc.collect()
    if GPU:
        torch.cuda.empty_cache()
    return found


def _first_tokens(scene: Scene, runner: Runner, cached: list[Cached], count: int, runs: int) -> dict[str, Any]:
    ids = scene.ids(count)

    def first_token() -> int:
        prompt = runner.pool.open(cached, count)
        (row,) = runner.prefill([prompt], [ids])
        runner.pool.close(prompt)
        return int(row.argmax())

    first_token()
    time = timing.summarise_ms([clock(first_token) for _ in range(runs)])
    replays = [time_captured(ready) for ready in runner.captured.values()]
    return time.to_json() | {"replay_ms": replays[-1] if replays else None}


def _decoded(
    scene: Scene, runner: Runner, cached: list[Cached], batch: int, question: int, runs: int
) -> dict[str, Any]:
    ids = scene.ids(question)

    def step() -> float:
        prompts = [runner.pool.open(cached, question + STEPS) for _ in range(batch)]
        logits = runner.prefill(prompts, [ids] * batch)
        ms = clock(lambda: list(runner.decode(prompts, logits, STEPS))) / (STEPS - 1)
        for prompt in prompts:
            runner.pool.close(prompt)
        return ms

    step()
    time = timing.summarise_ms([step() for _ in range(max(2, runs // 3))])
    replays = [time_captured(ready) for bucket, ready in runner.captured.items() if bucket.reserve]
    found = {"replay_ms": replays[-1] if replays else None, "tokens_per_s": batch / time.ms * 1e3}
    return time.to_json() | found


def main() -> None:
    """Measure and write one point at a time."""
    given = options(__doc__, axes=list(AXES), runs=30, seconds=1e9, tiny=False)
    end = perf_counter() + given.seconds
    scene = scene_of(given.tiny)
    name = "tiny" if given.tiny else "Llama-3.1-8B"
    with writer(given, f"scale@{'gpu' if GPU else 'cpu'}", scene.model.device, model=name) as out:
        for row in curves(scene, {axis: AXES[axis] for axis in given.axes}, given.runs):
            timed, counted = result_rows(row)
            out.timings([timed])
            out.counts(counted)
            print({k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()}, flush=True)
            if perf_counter() > end:
                break


if __name__ == "__main__":
    main()
