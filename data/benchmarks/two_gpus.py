"""Blocks encoded on one GPU and spread over two: a process each, with a model of its own, as `store encode` deals them.

    python data/benchmarks/two_gpus.py

leaves two-gpus.json: seconds for all blocks on one GPU, and for half of them on each of two at the same time, from a
start that both wait for until the later one is done. Llama-3.1-8B's shape, random weights.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from torch import multiprocessing

from workbench.core.blocks import Block
from workbench.core.errors import BadInput
from workbench.experiments import results
from workbench.experiments.bench import whole_model
from workbench.experiments.record import device_name, versions
from workbench.metrics.latency import quantiles

OUT = Path(__file__).with_name("two-gpus.json")
BLOCKS, TOKENS, RUNS = 256, 512, 8  # blocks, tokens of one, runs


def work(number: int, processes: int, blocks: int, runs: int, barrier: Any, found: Any) -> None:
    """Encode this process's share of the blocks, all processes beginning together; put (run, begin, end)."""
    from workbench.engine.paged_pool import Pool

    torch.cuda.set_device(number)
    with torch.device(f"cuda:{number}"):
        model = whole_model.build()
    model = model.to(f"cuda:{number}")
    draw = torch.Generator().manual_seed(number)
    mine = range(number, blocks, processes)
    ids = [torch.randint(model.config.vocab_size, (TOKENS,), generator=draw) for _ in mine]
    given = [Block(tuple(x.tolist())) for x in ids]
    pool = Pool(model, 2 + len(given) * TOKENS // 64)
    cached = pool.encode(model, given)  # warms up
    for run in range(runs):
        torch.cuda.synchronize()
        barrier.wait()
        begin = time.time()
        pool.encode(model, given, cached)
        torch.cuda.synchronize()
        found.put((run, begin, time.time()))


def seconds(processes: int, blocks: int, runs: int) -> list[float]:
    """Return the seconds of every run over so many GPUs: from the first begin to the last end."""
    context = multiprocessing.get_context("spawn")
    barrier, found = context.Barrier(processes), context.Queue()
    started = [
        context.Process(target=work, args=(number, processes, blocks, runs, barrier, found))
        for number in range(processes)
    ]
    for process in started:
        process.start()
    rows = [found.get(timeout=100) for _ in range(processes * runs)]
    for process in started:
        process.join()
    return [
        max(end for at, _, end in rows if at == run) - min(begin for at, begin, _ in rows if at == run)
        for run in range(runs)
    ]


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=BLOCKS)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    if torch.cuda.device_count() < 2:
        raise BadInput(f"two GPUs are needed, and {torch.cuda.device_count()} are here")
    about: dict[str, Any] = {"command": "python data/benchmarks/two_gpus.py", "shape": "Llama-3.1-8B"}
    about |= {"device": device_name(torch.device("cuda:0")), "versions": versions(), "tokens": TOKENS}
    about |= {"blocks": given.blocks, "runs": given.runs, "rows": []}
    for processes in (1, 2):
        taken = quantiles(seconds(processes, given.blocks, given.runs))
        row = {"gpus": processes, "seconds": taken.p50, "p5": taken.p5, "p95": taken.p95}
        about["rows"].append(row | {"tokens_per_s": given.blocks * TOKENS / taken.p50})
        print(about["rows"][-1], flush=True)
        results.write_json(given.out, about)


if __name__ == "__main__":
    main()
