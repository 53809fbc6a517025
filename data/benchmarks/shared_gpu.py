"""Several processes that answer on one GPU at the same time, until one of them makes no more progress.

    python data/benchmarks/shared_gpu.py --processes 6 --seconds 60
    python data/benchmarks/shared_gpu.py --processes 6 --seconds 60 --without overlap

Each answers batches of random prompts of about 1,300 tokens by a random model of SmolLM2's shape, in full and in block
mode. Prints how many batches every process answered, and since when it stands. Exit code 1 where one stands for QUIET
seconds; all are ended then.
--without leaves something out, to find what stops them: overlap (no kernel begins before the one before has ended),
hopper (no kernel of warps that fetch and warps that compute) or pages (contiguous caches, no captured step).
"""

import sys
import time
from itertools import cycle
from multiprocessing import get_context
from typing import Any

import numpy as np
from script import options

from workbench import generate, models
from workbench.core.blocks import Block, Prompt
from workbench.experiments.bench.models.whole_model import build
from workbench.kernels._shared import hopper, linear_hopper, triton_import

QUIET = 30.0  # seconds
SHAPE: dict[str, Any] = {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "head_dim": 64}
SHAPE |= {"num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152, "tie_word_embeddings": True}
SHAPE |= {"max_position_embeddings": 8192, "rms_norm_eps": 1e-5}
WITHOUT = ("nothing", "overlap", "hopper", "pages")


def answer(seed: int, without: str, batch: int, done: Any) -> None:
    """Answer batches for ever, and tell of each."""
    triton_import.OVERLAP = without != "overlap"
    if without == "hopper":
        hopper.fits_gpu = lambda q, pools: False
        linear_hopper.fits = lambda x, weight: False
    engine = "contiguous" if without == "pages" else "auto"
    model, draw = build(SHAPE, seed), np.random.default_rng(seed)
    tokenizer = models.load("lab-full").tokenizer

    def block(low: int, high: int) -> Block:
        return Block(tuple(draw.integers(3, 40_000, draw.integers(low, high)).tolist()))

    for mode in cycle(("full", "block")):
        prompts = [Prompt((*(block(80, 170) for _ in range(10)), block(15, 40))) for _ in range(batch)]
        generate(model, tokenizer, prompts, mode=mode, max_new_tokens=32, engine=engine)
        done.put((seed, time.monotonic()))


def main() -> None:
    """Start the processes, and watch them."""
    given = options(__doc__, processes=6, seconds=60.0, without="nothing", batch=32)
    if given.without not in WITHOUT:
        sys.exit(f"--without {given.without}: it is one of {', '.join(WITHOUT)}")
    context = get_context("spawn")
    done = context.Queue()
    numbers = range(given.processes)
    workers = [context.Process(target=answer, args=(n, given.without, given.batch, done), daemon=True) for n in numbers]
    for worker in workers:
        worker.start()
    heard: dict[int, float] = dict.fromkeys(numbers, time.monotonic() + 120)  # they load before they begin
    begin, batches = time.monotonic(), dict.fromkeys(numbers, 0)
    while time.monotonic() < begin + given.seconds and time.monotonic() - min(heard.values()) < QUIET:
        time.sleep(0.2)
        while not done.empty():
            number, at = done.get()
            heard[number] = at
            batches[number] += 1
    now = time.monotonic()
    standing = [n for n in numbers if now - heard[n] >= QUIET]
    for n in numbers:
        print(f"process {n}: {batches[n]} batches, the last {now - heard[n]:.0f} s ago")
    for worker in workers:
        worker.kill()
    sys.exit(1 if standing else 0)


if __name__ == "__main__":
    main()
