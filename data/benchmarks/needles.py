"""Needles under dense attention, QUOKA and the union of block selections, with more questions than sparse.py asks.

    python data/benchmarks/needles.py --device cuda

leaves needles.json for figure 2 of CompactAttention: of every task and method a digit a question ("1": right), written
after every task; a task of which the file holds as many questions for the same settings is not measured again. Model,
seed, passages and chunks are those of data/benchmarks/sparse.py, so the first questions of a task are the same ones.
"""

import argparse
import json
from pathlib import Path

from workbench import data, models
from workbench.experiments import results
from workbench.experiments.record import device_name, versions
from workbench.methods import sparse
from workbench.metrics import answers
from workbench.metrics.side_by_side import compare_many

HERE = Path(__file__).parent
MODEL, SEED, PASSAGES, CHUNK = "lab-full", 40_000, 40, 512
TASKS = ("multi-key", "common")
SPECS = (
    "dense(block=64)",
    "quoka(block=64, keep=0.25)",
    "compact(over=flash_prefill(block=64, sink=1, window=2, tail=1, alpha=0.9))",
)
AT_ONCE = 24  # prompts


def right(loaded: models.Loaded, samples: list[data.Sample], specs: list[str], together: int) -> dict[str, str]:
    """Return a digit a question for every method."""
    methods = {spec: sparse.named(spec).ready(loaded.model) for spec in specs}
    prompts = loaded.layout.prompts(samples, loaded.tokenizer)
    digits = dict.fromkeys(specs, "")
    for start in range(0, len(samples), AT_ONCE):
        found = compare_many(loaded, prompts[start : start + AT_ONCE], methods, CHUNK, 24, False, together)
        for sample, by_spec in zip(samples[start:], found, strict=False):
            for spec, compared in by_spec.items():
                digits[spec] += str(int(answers.exact_match(compared.text, sample.answers)))
    return digits


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=500, help="questions of a task")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS))
    parser.add_argument("--specs", nargs="+", default=list(SPECS))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=HERE)
    args = parser.parse_args()
    loaded = models.load(MODEL, args.device)
    about = {"model": MODEL, "seed": SEED, "passages": PASSAGES, "chunk": CHUNK}
    about |= {"device": device_name(loaded.model.device), "versions": versions()}
    path = args.out / "needles.json"
    before = json.loads(path.read_text()) if path.exists() else {}
    same = all(before.get(name) == value for name, value in about.items())
    by_task: dict[str, dict[str, str]] = before.get("tasks", {}) if same else {}
    for task in args.tasks:
        if all(len(by_task.get(task, {}).get(spec, "")) >= args.samples for spec in args.specs):
            continue
        samples = data.load(f"needles-{task}", args.samples, SEED, PASSAGES)
        by_task[task] = right(loaded, samples, args.specs, 64 if args.device != "cpu" else 8)
        results.write_json(path, {**about, "tasks": by_task})
        print(task, {spec: digits.count("1") for spec, digits in by_task[task].items()}, flush=True)


if __name__ == "__main__":
    main()
