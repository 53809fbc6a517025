"""The worth of last rows that attend to everything: FlashPrefill and SeerAttention without that rule, on the lab
questions of sparse.py.

    python data/benchmarks/last_rows.py --processes 2
    python data/benchmarks/last_rows.py --only seer_attention     the other entries stay as they are

writes last-rows.json, one entry a method by its spec without the rule: `with`, its spec with it (a setting of
sparse.parquet), the Record without, and per question whether the answer is right (a string of 0 and 1, in the order of
the questions). A gate that was distilled on prompts that are scored is refused.
"""

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from workbench import models
from workbench.core.errors import BadInput
from workbench.core.runner import Workers
from workbench.experiments import results
from workbench.experiments.trial import Trial
from workbench.methods.seer_gate import FILE, check_unseen

OUT = Path(__file__).with_name("last-rows.json")
MODEL, SEED, PASSAGES, CHUNK = "lab-full", 40_000, 40, 512  # as in sparse.py
SPECS = (  # of sparse.py; about a third of the pairs
    "flash_prefill(block=64, sink=1, window=2, tail=1, alpha=0.5)",
    "seer_attention(tail=1, threshold=0.06)",
)


def run(spec: str, samples: int, device: str) -> dict[str, Any]:
    """Return the entry of a method without the rule, by its name."""
    without = spec.replace("tail=1", "tail=0")
    if spec.startswith("seer_attention"):
        check_unseen(models.folder(MODEL) / FILE, "lab", SEED, range(samples))
    about: dict[str, Any] = {"samples": samples, "seed": SEED, "passages": PASSAGES, "device": device, "timed": 10}
    trial = Trial(MODEL, mode="full", sparse=without, chunk=CHUNK, **about)
    return {without: {"with": spec, **results.entry(*trial.run_each())}}


def others(specs: Sequence[str], samples: int) -> dict[str, Any]:
    """Return the entries of the file that are of other methods, on as many questions; none where all are measured."""
    none: dict[str, Any] = {"samples": samples, "methods": {}}
    there = results.read(OUT.stem) if len(specs) < len(SPECS) else none
    if (there["samples"], there.get("seed", SEED)) != (samples, SEED):
        raise BadInput(f"{OUT.name} is of {there['samples']} samples, not {samples}: measure all methods")
    return {name: entry for name, entry in there["methods"].items() if entry["with"] not in specs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=500)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--only", choices=[spec.partition("(")[0] for spec in SPECS], help="measure one method alone")
    args = parser.parse_args()
    specs = [spec for spec in SPECS if args.only in (None, spec.partition("(")[0])]
    work = partial(run, samples=args.samples, device=args.device)
    with Workers(args.processes) as workers:
        made = {spec: outcome.value() for spec, outcome in workers.run(work, specs)}
    measured = {name: entry for spec in specs for name, entry in made[spec].items()}
    methods = others(specs, args.samples) | measured
    results.write(OUT, args.samples, SEED, methods)
    print(results.summary(methods))


if __name__ == "__main__":
    main()
