"""Block-Attention's table 2 on the lab model: every method on the same questions of held-out worlds.

    python data/benchmarks/block_attention.py --device cuda --samples 2000

writes data/benchmarks/block-attention.json: one entry a method with its Record and, per question, whether the answer is
right (a string of 0 and 1, in the order of the questions), so that differences can be taken question by question.
Methods that the file holds for as many questions are not run again. With several GPUs, `--processes` shares the methods
out. `--unpositioned` is a model that was fine-tuned with naive positions, `--vanilla` one that was fine-tuned in full
mode alone on the same questions (data/benchmarks/lab_block.sh makes both); they do not ship.
"""

import argparse
from pathlib import Path
from typing import Any

import torch

from workbench.core.runner import Workers
from workbench.experiments import results
from workbench.experiments.trial import Trial

OUT = Path(__file__).with_name("block-attention.json")
SEED = 30_000  # of worlds that neither trained nor chose a model
UNPOSITIONED = "fine-tuned without positions"
VANILLA = "fine-tuned in full mode alone"
METHODS: dict[str, dict[str, Any]] = {  # name in the table: fields of the trial
    "full attention": {"model": "lab-full", "mode": "full"},
    "Superposition": {"model": "lab-full", "mode": "superposition"},
    "PromptCache": {"model": "lab-full", "mode": "block", "positions": "naive"},
    "block, not fine-tuned": {"model": "lab-full", "mode": "block"},
    UNPOSITIONED: {"mode": "block", "positions": "naive"},
    VANILLA: {"mode": "block"},
    f"{VANILLA}, full mode": {"mode": "full"},
    "block fine-tuned": {"model": "lab-block", "mode": "block"},
    "block fine-tuned, full mode": {"model": "lab-block", "mode": "full"},
}


def run(job: tuple[str, Trial]) -> dict[str, Any]:
    """Return the entry of a method."""
    return results.entry(*job[1].run_each())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--unpositioned", default="", help="folder of the model tuned with naive positions")
    parser.add_argument("--vanilla", default="", help="folder of the model tuned in full mode alone")
    args = parser.parse_args()
    folders = {UNPOSITIONED: args.unpositioned, VANILLA: args.vanilla, f"{VANILLA}, full mode": args.vanilla}
    gpus = max(1, torch.cuda.device_count()) if args.device == "cuda" else 0
    common = {"samples": args.samples, "seed": SEED, "passages": 10, "batch": 64, "timed": 50}
    held: dict[str, Any] = results.read_json(OUT) if OUT.is_file() else {}
    entries: dict[str, Any] = held["methods"] if held.get("samples") == args.samples else {}
    jobs = []
    for i, (name, method) in enumerate(METHODS.items()):
        fields = {"model": folders.get(name, ""), **method}
        device = f"cuda:{i % gpus}" if gpus else args.device
        if fields["model"] and name not in entries:
            jobs.append((name, Trial(**fields, **common, device=device)))
    with Workers(args.processes) as workers:
        for (name, _), outcome in workers.run(run, jobs):
            entries[name] = outcome.value()
            ordered = {name: entries[name] for name in METHODS if name in entries}
            results.write(OUT, args.samples, SEED, ordered)
    print(results.summary(entries))


if __name__ == "__main__":
    main()
