"""Many questions at once over stored blocks: throughput, time to first token, and how long the engine stands still.

Each question has `per_question` blocks of a corpus, drawn by Zipf's law, in the order of the draw, and a question of
its own. All are asked at once. Blocks lie on disk ("cold"), in host memory ("warm") or where the model reads them
("hot"); they are loaded by the engine itself ("sync"), by loaders request by request, or by loaders layer by layer.

Baselines in the same run: full prefill of every token, and a prefix cache, which reuses what stands behind the same
blocks only. They are asked fewer questions, two at a time: answers a second compare, times of so many requests that
wait for each other do not. On a GPU requests share the pages of a pool, on a CPU each has a contiguous KV of its own.
"""

import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
from serving_load import Load, State
from stored_corpus import StoredCorpus

from workbench.core.blocks import Prompt
from workbench.methods.serving import MODES, Engine, Scheduler
from workbench.methods.serving.scheduler import Mode
from workbench.store.events import Events, idle_share

FIRST = 4  # questions of a baseline that tell how many there is time for


def serve(
    engine: Engine, prompts: Sequence[Prompt], mode: Mode, load: Load, gather: bool = True
) -> tuple[dict[str, Any], Events]:
    """Ask all prompts at once, and measure. `gather` is that of `Scheduler`.

    Returns {questions, seconds, per_second, ttft: {mean, p50, p95}, idle, loaded: bytes by tier, reused, failed,
    together: requests of a prefill, on average}.
    """
    events = Events()
    scheduler = Scheduler(engine, mode, load.loaders, load.batch, load.loading, len(prompts) + 1, events, gather)
    begin = perf_counter()
    tickets = scheduler.run(prompts, load.answer)
    seconds = perf_counter() - begin
    scheduler.close()
    done = [ticket for ticket in tickets if ticket.generation is not None]
    first = [ticket.first - ticket.arrived for ticket in done if ticket.first is not None]
    blocks = [
        block
        for ticket in done
        if ticket.generation and ticket.generation.receipt
        for block in ticket.generation.receipt.blocks
    ]
    loaded: dict[str, int] = {}
    for block in blocks:
        if block.tier:
            loaded[block.tier] = loaded.get(block.tier, 0) + block.bytes
    row: dict[str, Any] = {"questions": len(prompts), "seconds": seconds, "per_second": len(done) / seconds}
    row["ttft"] = _spread(first)
    row |= {"idle": idle_share(events), "loaded": loaded, "failed": len(tickets) - len(done)}
    row["reused"] = sum(block.status == "reused" for block in blocks) / max(1, len(blocks))
    steps = [
        event.detail for event in events if event.what == "run" and event.detail.startswith("prefill") and event.tokens
    ]
    row["together"] = len(done) / max(1, len(steps))
    if errors := [str(ticket.error) for ticket in tickets if ticket.error is not None]:
        row["problem"] = errors[0][:200]
    return row, events


def runs(bench: StoredCorpus, seconds: float) -> Iterator[dict[str, Any]]:
    """Yield one row a run, as they end; those that come after `seconds` are skipped, and say so.

    Fields: those of `serve`, with {run: "reuse" or a baseline, state, mode, ratio}. Baselines come last, and are asked
    as many questions as there is time for.
    """
    load, end = bench.load, perf_counter() + seconds
    timed = partial(_timed, bench, end)
    if not bench.paged:  # there, what host memory does not hold is read from the folder in warm runs too
        yield _written(bench)
    if bench.paged:
        warmed = bench.engine("hot")
        for count in (8, 4, 2, 1):  # kernels are compiled, and steps captured
            serve(warmed, bench.prompts[:count], "request", load)
        serve(bench.engine("hot", load.ratio), bench.prompts[:1], "layer", load)
    else:
        serve(bench.engine("hot"), bench.prompts[:2], "request", load)
    states: tuple[State, ...] = ("hot", "warm")
    for state in states:
        for mode in MODES:
            yield timed(_facts(state), partial(bench.engine, state), bench.prompts, mode)
    yield timed(_facts("warm"), partial(bench.engine, "warm"), bench.prompts, "request", gather=False)
    for mode in MODES:
        engine = partial(bench.engine, "warm", load.ratio)
        yield timed(_facts("warm", ratio=load.ratio), engine, bench.prompts[: load.chosen], mode)
    if bench.paged and perf_counter() < end:
        yield _written(bench)
        bench.packed.clear()  # its page-locked memory is taken by what is read
    for mode in MODES:
        if bench.folder.is_dir():
            yield timed(_facts("cold"), partial(bench.engine, "cold"), bench.prompts[: load.cold], mode)
    yield from _baselines(bench, end, timed)


def _baselines(bench: StoredCorpus, end: float, timed: Callable[..., dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Ask the baselines the same questions, as many as are answered before `end` if the first are like the others."""
    names, asked = ("full prefill", "prefix caching"), bench.load.baseline
    both = perf_counter() < end  # else they are skipped
    if bench.paged and both:
        for count in (2, FIRST):  # kernels are compiled first
            begin = perf_counter()
            for name in names:
                timed(_facts("", name), partial(bench.baseline, name), bench.prompts[-count:], "request", both)
        fit = int(FIRST * (end - perf_counter()) / (perf_counter() - begin))
        asked = max(FIRST, min(asked, fit))
    for name in names:
        yield timed(_facts("", name), partial(bench.baseline, name), bench.prompts[:asked], "request", both)


def _timed(
    bench: StoredCorpus,
    end: float,
    facts: dict[str, Any],
    engine: Callable[[], Engine],
    prompts: Sequence[Prompt],
    mode: Mode,
    needed: bool = False,
    gather: bool = True,
) -> dict[str, Any]:
    """Measure one run, unless the time has passed; what is `needed` is not left out for that.

    Returns its row.
    """
    facts = facts | {"mode": mode if gather else "at once"}  # by request, and whoever is ready is computed
    if perf_counter() > end and not needed:
        return facts | {"skipped": "the time had passed"}
    load = bench.load
    few = replace(load, batch=min(2, load.batch)) if facts["run"] != "reuse" else load  # memory of whole prompts
    try:
        row, _ = serve(engine(), prompts, mode, few, gather)
    except RuntimeError as problem:  # out of memory, of a GPU: the other runs go on
        traceback.print_exc()
        row = {"problem": str(problem).partition("\n")[0]}
    return facts | row


def _written(bench: StoredCorpus) -> dict[str, Any]:
    return {"run": "write", **bench.write()}


def _facts(state: str, run: str = "reuse", ratio: float = 0.0) -> dict[str, Any]:
    return {"run": run, "state": state, "ratio": ratio}


def _spread(seconds: Sequence[float]) -> dict[str, float]:
    if not seconds:
        return {}
    return {"mean": float(np.mean(seconds)), "p50": float(np.median(seconds)), "p95": float(np.quantile(seconds, 0.95))}
