"""Block-Attention's table 2 on the lab model: every method on the same questions of held-out worlds.

    python data/benchmarks/block_attention.py --device cuda --samples 2000

writes data/benchmarks/block-attention.json: one entry a method with its Record and, per question, whether the answer is
right (a string of 0 and 1, in the order of the questions), so that differences can be taken question by question.
Methods that the file holds for as many questions are not run again. With several GPUs, `--processes` shares the methods
out. `--unpositioned` is a model that was fine-tuned with naive positions (data/benchmarks/lab_block.sh makes one); it
does not ship.
"""

import argparse
import json
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from workbench.experiments.record import write
from workbench.experiments.trial import Trial

OUT = Path(__file__).with_name("block-attention.json")
SEED = 30_000  # of worlds that neither trained nor chose a model
ORDER = (
    "full attention", "Superposition", "PromptCache", "block, not fine-tuned", "fine-tuned without positions",
    "block fine-tuned", "block fine-tuned, full mode",
)  # fmt: skip


def trials(unpositioned: str, **common: Any) -> Iterator[tuple[str, Trial]]:
    """Name in the table, and what is tried."""
    yield "full attention", Trial("lab-full", mode="full", **common)
    yield "Superposition", Trial("lab-full", mode="superposition", **common)
    yield "PromptCache", Trial("lab-full", mode="block", positions="naive", **common)
    yield "block, not fine-tuned", Trial("lab-full", mode="block", **common)
    yield "block fine-tuned", Trial("lab-block", mode="block", **common)
    yield "block fine-tuned, full mode", Trial("lab-block", mode="full", **common)
    if unpositioned:
        name = "fine-tuned without positions"
        yield name, Trial(unpositioned, mode="block", positions="naive", **common)


def run(name: str, trial: Trial) -> tuple[str, dict[str, Any]]:
    """One entry of the file."""
    record, rows = trial.run_each()
    return name, {"record": record.to_json(), "right": "".join(str(int(row["em"])) for row in rows)}


def kept(samples: int) -> dict[str, Any]:
    """What the file holds already, of as many questions."""
    held = json.loads(OUT.read_text()) if OUT.is_file() else {"samples": 0}
    return held["methods"] if held["samples"] == samples else {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--unpositioned", default="", help="folder of the model tuned with naive positions")
    asked = parser.parse_args()
    gpus = max(1, torch.cuda.device_count()) if asked.device == "cuda" else 0
    common = {"samples": asked.samples, "seed": SEED, "passages": 10, "batch": 64, "timed": 50}
    jobs = []
    for i, (name, trial) in enumerate(trials(asked.unpositioned, **common)):
        device = f"cuda:{i % gpus}" if gpus else asked.device
        jobs.append((name, Trial(**{**vars(trial), "device": device})))
    found = kept(asked.samples)
    jobs = [(name, trial) for name, trial in jobs if name not in found]
    with ProcessPoolExecutor(asked.processes, get_context("spawn")) as pool:
        for future in as_completed([pool.submit(run, *job) for job in jobs]):
            name, entry = future.result()
            found[name] = entry
            ordered = {name: found[name] for name in ORDER if name in found}
            write(json.dumps({"samples": asked.samples, "seed": SEED, "methods": ordered}, indent=1) + "\n", OUT)
    for name, entry in found.items():
        record = entry["record"]
        print(f"{name:32} {record['em']:.3f} [{record['em_low']:.3f}, {record['em_high']:.3f}]  n = {record['n']}")


if __name__ == "__main__":
    main()
