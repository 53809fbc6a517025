"""Run several processes on one GPU, until one of them stops making progress.

    python data/benchmarks/shared_gpu.py --processes 6 --seconds 60
    python data/benchmarks/shared_gpu.py --processes 6 --seconds 60 --without overlap

Each answers batches of random prompts of about 1,300 tokens by a random model of SmolLM2's shape, in full and in block
mode. Prints how many batches every process answered, and how long ago the last one was. Exit code 1 if one makes
no progress for QUIET seconds or has ended; all are ended then. --without disables a feature, to find the cause: overlap
(no programmatic dependent launch), hopper (no warp-specialised kernels; linear, tiles, question: only one of them) or
pages (contiguous caches, no captured step).
"""

import sys
import time
from collections.abc import Iterator, Mapping
from itertools import cycle
from multiprocessing import get_context
from typing import Any

import numpy as np
from script import options

from workbench import generate, models
from workbench.core.blocks import Block, Prompt
from workbench.experiments.bench.models.whole_model import build
from workbench.kernels._pages import hopper as question
from workbench.kernels._shared import hopper, linear_hopper, triton_import
from workbench.kernels._tiles import hopper as tiles

QUIET = 30.0  # seconds
SHAPE: dict[str, Any] = {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "head_dim": 64}
SHAPE |= {"num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152, "tie_word_embeddings": True}
SHAPE |= {"max_position_embeddings": 8192, "rms_norm_eps": 1e-5}
KERNELS: dict[str, tuple[tuple[Any, str], ...]] = {  # functions that decide on Hopper kernels
    "hopper": ((hopper, "fits_gpu"), (linear_hopper, "fits")),
    "linear": ((linear_hopper, "fits"),),
    "tiles": ((tiles, "fits"),),
    "question": ((question, "fits"),),
}
WITHOUT = ("nothing", "overlap", *KERNELS, "pages")


def answers(seed: int, batch: int, without: str = "nothing", shape: Mapping[str, Any] = SHAPE) -> Iterator[str]:
    """Answer batches endlessly, and yield the mode of each."""
    triton_import.OVERLAP = without != "overlap"
    for module, fits in KERNELS.get(without, ()):
        setattr(module, fits, lambda *given: False)
    engine = "contiguous" if without == "pages" else "auto"
    model, draw = build(shape, seed), np.random.default_rng(seed)
    tokenizer = models.load("lab-full").tokenizer

    def block(low: int, high: int) -> Block:
        return Block(tuple(draw.integers(3, shape["vocab_size"], draw.integers(low, high)).tolist()))

    for mode in cycle(("full", "block")):
        prompts = [Prompt((*(block(80, 170) for _ in range(10)), block(15, 40))) for _ in range(batch)]
        generate(model, tokenizer, prompts, mode=mode, max_new_tokens=32, engine=engine)
        yield mode


def tell(number: int, batch: int, without: str, done: Any) -> None:
    """Answer batches, and put the number of this process into a queue after each."""
    for _ in answers(number, batch, without):
        done.put(number)


def main() -> None:
    """Start the processes and watch them."""
    given = options(__doc__, processes=6, seconds=60.0, without="nothing", batch=32)
    if given.without not in WITHOUT:
        sys.exit(f"--without {given.without}: it is one of {', '.join(WITHOUT)}")
    context = get_context("spawn")
    done = context.Queue()
    numbers = range(given.processes)
    workers = [context.Process(target=tell, args=(n, given.batch, given.without, done), daemon=True) for n in numbers]
    for worker in workers:
        worker.start()
    batches, heard = dict.fromkeys(numbers, 0), {done.get(): time.monotonic()}  # the clock starts at the first batch
    begin = time.monotonic()
    heard = dict.fromkeys(numbers, begin) | heard
    wrong = False
    while not wrong and time.monotonic() < begin + given.seconds:
        time.sleep(0.2)
        while not done.empty():
            number = done.get()
            batches[number] += 1
            heard[number] = time.monotonic()
        wrong = time.monotonic() - min(heard.values()) >= QUIET or not all(worker.is_alive() for worker in workers)
    for n, worker in zip(numbers, workers, strict=True):
        ended = "" if worker.is_alive() else ", ended by itself"
        print(f"process {n}: {batches[n]} batches, the last {time.monotonic() - heard[n]:.0f} s ago{ended}")
        worker.kill()
    sys.exit(wrong)


if __name__ == "__main__":
    main()
