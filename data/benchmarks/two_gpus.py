"""Blocks encoded on one GPU and spread over two: a process each, with a model of its own, as `store encode` deals them.

    python data/benchmarks/two_gpus.py
    python data/benchmarks/two_gpus.py --tiny --out runs/try     two processes on a CPU, for a try

writes timings of experiment "two-gpus": milliseconds for all blocks on the first GPU while the second is idle, and for
half of them on each at the same time, in turns, from a start that both wait for until the later one is done. No turn
begins after `--seconds`. Llama-3.1-8B's shape, random weights.
"""

import argparse
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from zlib import crc32

import torch
from torch import multiprocessing

from workbench.core.blocks import Block
from workbench.core.errors import BadInput
from workbench.experiments.bench.models import whole_model
from workbench.experiments.trials.record import device_name, versions
from workbench.metrics.latency import quantiles
from workbench.results import Writer, this_run
from workbench.results.reader import FOLDER

BLOCKS, TOKENS, RUNS, SECONDS = 64, 512, 30, 50.0  # blocks, tokens of one, turns, seconds from the start
LEAST = 3  # turns that are taken however late it is
TINY = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
TINY |= {"num_key_value_heads": 2, "head_dim": 16, "vocab_size": 97}
ALONE, SHARED = "alone", "shared"  # all blocks on one GPU, or every second one


def work(number: int, blocks: int, tokens: int, tiny: bool, told: Connection, barrier: Any) -> None:
    """Do what `encode` does; what goes wrong is sent."""
    try:
        encode(number, blocks, tokens, tiny, told, barrier)
    except Exception:
        told.send(traceback.format_exc())


def encode(number: int, blocks: int, tokens: int, tiny: bool, told: Connection, barrier: Any) -> None:
    """Encode on GPU `number` what is told, all blocks or its share, and send (begin, end), until None is told."""
    from workbench.engine.pages.paged_pool import Pool

    if not tiny:
        torch.cuda.set_device(number)
    model = whole_model.build(whole_model.LLAMA | TINY if tiny else whole_model.LLAMA)
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(model.config.vocab_size, (blocks, tokens), generator=draw).tolist()
    all_blocks = [Block(tuple(row)) for row in ids]
    given = {ALONE: all_blocks, SHARED: all_blocks[number::2]}
    pool = Pool(model, 2 + blocks * -(-tokens // 64))
    cached = [pool.cached(tokens) for _ in range(blocks)]
    for some in given.values():
        pool.encode(model, some, cached[: len(some)])  # warms up
    told.send(checksum(pool, cached[0]) if number else _second(model, pool, all_blocks, cached))
    while (turn := told.recv()) is not None:
        _wait(tiny)
        if turn == SHARED:
            barrier.wait(30)
        begin = time.time()
        pool.encode(model, given[turn], cached[: len(given[turn])])
        _wait(tiny)
        told.send((begin, time.time()))


def checksum(pool: Any, cached: Any) -> int:
    """Return the CRC-32 of the keys and values of a block, as its pages hold them."""
    slots, found = pool.slots(cached).to(pool.device), 0
    for layer in (*pool.keys, *pool.values):
        found = crc32(layer[:, slots].contiguous().cpu().view(torch.uint8).numpy().tobytes(), found)
    return found


def _second(model: Any, pool: Any, blocks: list[Block], cached: list[Any]) -> int:
    """Return the checksum of the second block, which is the first that the other process encodes."""
    pool.encode(model, blocks[1::2], cached[: len(blocks[1::2])])
    return checksum(pool, cached[0])


def _wait(tiny: bool) -> None:
    if not tiny:
        torch.cuda.synchronize()


class Both:
    """A process for each of two GPUs, told what to do in turns. Use as a context: they end with it."""

    def __init__(self, blocks: int, tokens: int, tiny: bool):
        context = multiprocessing.get_context("spawn")
        self.barrier = context.Barrier(2)  # kept: a barrier that is collected is gone for processes that still start
        pairs = [context.Pipe() for _ in range(2)]
        self.ends = [mine for mine, _ in pairs]
        self.processes = [
            context.Process(target=work, args=(i, blocks, tokens, tiny, theirs, self.barrier))
            for i, (_, theirs) in enumerate(pairs)
        ]
        for process in self.processes:
            process.start()
        for _, theirs in pairs:
            theirs.close()  # a process that dies then ends what is read of it

    def __enter__(self) -> "Both":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.terminate()
            process.join()

    def ready(self) -> bool:
        """Wait until both have warmed up; return whether both computed the same bits for one block."""
        one, other = (_received(end) for end in self.ends)
        return bool(one == other)

    def seconds(self, turn: str) -> float:
        """Run a turn, and return its seconds from the first begin to the last end."""
        ends = self.ends[:1] if turn == ALONE else self.ends
        for end in ends:
            end.send(turn)
        times = [_received(end) for end in ends]
        return float(max(end for _, end in times) - min(begin for begin, _ in times))


def _received(end: Connection) -> Any:
    """Wait 90 s at most for what a process sends."""
    if not end.poll(90):
        raise RuntimeError("a process has sent nothing for 90 s")
    said = end.recv()
    if isinstance(said, str):
        raise RuntimeError(said)
    return said


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=BLOCKS)
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--out", type=Path, default=FOLDER, help="results folder")
    given = parser.parse_args()
    end = time.monotonic() + given.seconds
    if not given.tiny and torch.cuda.device_count() < 2:
        raise BadInput(f"two GPUs are needed, and {torch.cuda.device_count()} are here")
    if given.blocks < 2 or given.runs < 1:
        raise BadInput(f"{given.blocks} blocks and {given.runs} runs: at least 2 blocks and 1 run are needed")
    origin = {"model": "tiny" if given.tiny else "Llama-3.1-8B", "versions": versions(), **this_run()}
    origin |= {"device": "cpu" if given.tiny else device_name(torch.device("cuda:0"))}
    taken: dict[str, list[float]] = {ALONE: [], SHARED: []}
    with Both(given.blocks, given.tokens, given.tiny) as both:
        setting = {"blocks": given.blocks, "tokens": given.tokens, "same_bits": both.ready()}
        print(f"ready {given.seconds - end + time.monotonic():.0f} s after the start: {setting}", flush=True)
        for run in range(given.runs):
            if run >= LEAST and time.monotonic() > end:
                break
            for turn, seconds in taken.items():
                seconds.append(both.seconds(turn))
    workload = f"{given.blocks} blocks of {given.tokens} tokens"
    with Writer(given.out, "two-gpus@encode", **origin) as out:
        for gpus, seconds in enumerate(taken.values(), 1):
            found = quantiles(seconds)
            times = {"ms": found.p50 * 1e3, "p5": found.p5 * 1e3, "p95": found.p95 * 1e3, "runs": len(seconds)}
            about = {"workload": workload, "candidate": f"{gpus} GPU" + "s" * (gpus > 1)}
            out.timings([{**about, **times, "setting": {**setting, "gpus": gpus}}])
            print(about, times, flush=True)


if __name__ == "__main__":
    main()
