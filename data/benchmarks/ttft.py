"""Time to the first token over cached blocks, against full prefill and against stock transformers, in one run.

    python data/benchmarks/ttft.py --device cpu --threads 2     writes data/benchmarks/ttft-DEVICE.json

Ways, taken in turns so that a busy machine hurts all alike: `full` (the engine's own prefill), `block` (every block
from the store in memory, re-encoded within the time), `stock full` (transformers' SDPA) and `stock prefix` (stock
transformers over a ready cache of this very context in its place, which nothing has to move: a prefix cache's best).
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import DynamicCache

from workbench import data, models
from workbench.generation import first_token
from workbench.lengths import prompt_of_length
from workbench.metrics.latency import measure, quantiles
from workbench.record import device_name, versions, write
from workbench.store import MemoryStore, fetch

WAYS = ("full", "block", "stock full", "stock prefix")


def jobs(asked: argparse.Namespace, length: int) -> dict[str, Callable[[], int]]:
    """A function for every way; each returns the first token."""
    engine, tokenizer, layout = models.load(asked.model, asked.device)
    stock = models.load(asked.model, asked.device)[0]
    stock.set_attn_implementation("sdpa")
    prompt = prompt_of_length(length, data.load("lab", 8), tokenizer, layout, asked.question)
    tokens = torch.as_tensor(prompt.tokens, device=engine.device)[None]
    store = MemoryStore(1 << 62)
    fetch(engine, prompt.context, store)
    ready, context = DynamicCache(config=stock.config), length - asked.question
    with torch.no_grad():
        stock(tokens[:, :context], past_key_values=ready, logits_to_keep=1)

    def whole() -> int:
        with torch.no_grad():
            return int(stock(tokens, logits_to_keep=1, use_cache=True).logits[0, -1].argmax())

    def prefix() -> int:
        with torch.no_grad():
            token = int(stock(tokens[:, context:], past_key_values=ready, logits_to_keep=1).logits[0, -1].argmax())
        ready.crop(-asked.question)
        return token

    return {
        "full": lambda: first_token(engine, prompt, "full", store),
        "block": lambda: first_token(engine, prompt, "block", store),
        "stock full": whole,
        "stock prefix": prefix,
    }


def rows(asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for length in asked.lengths:
        ways = jobs(asked, length)
        if ways["full"]() != (token := ways["stock full"]()) or ways["stock prefix"]() != token:
            raise SystemExit(f"at {length} tokens the engine and transformers disagree about the first token")
        seconds: dict[str, list[float]] = {way: [] for way in WAYS}
        for turn in range(asked.repeats):
            for way in WAYS:
                seconds[way].append(measure([ways[way]], torch.device(asked.device), 1 if turn == 0 else 0).p50)
        found = {way: quantiles(times) for way, times in seconds.items()}
        for way, time in found.items():
            yield {
                "length": length, "way": way, "p5": time.p5, "p50": time.p50, "p95": time.p95, "n": time.n,
                "block_is_faster": time.p50 / found["block"].p50,
            }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="lab-full")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 1024, 2048])
    parser.add_argument("--question", type=int, default=50, help="tokens of the question")
    parser.add_argument("--repeats", type=int, default=21)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    facts: dict[str, Any] = {
        "command": " ".join(["python", "data/benchmarks/ttft.py", *sys.argv[1:]]),
        "model": asked.model,
        "question": asked.question,
        "threads": asked.threads,
        "device": device_name(torch.device(asked.device)),
        "versions": versions(),
        "rows": [],
    }
    for row in rows(asked):
        facts["rows"].append(row)
        faster = f"block is {row['block_is_faster']:.1f} times as fast"
        print(f"{row['length']:>6}  {row['way']:14} {row['p50'] * 1e3:8.1f} ms  {faster}", flush=True)
    write(json.dumps(facts, indent=1) + "\n", Path(__file__).with_name(f"ttft-{asked.device}.json"))


if __name__ == "__main__":
    main()
