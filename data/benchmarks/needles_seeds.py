"""Needles over training seeds: the tasks and methods of needles.py under the trainings of sparse_seeds.py.

    python data/benchmarks/needles_seeds.py --device cuda --processes 6

leaves needles-seeds.json: by task, method and training seed a digit a question ("1": right). Questions, passages and
chunks are those of needles.py, models those of sparse_seeds.py. The file is written after every part, and what it holds
of as many questions is not measured again.
"""

import argparse
from functools import partial
from pathlib import Path
from typing import Any

from needles import CHUNK, PASSAGES, SEED, SPECS, TASKS, right
from sparse_seeds import MODEL, SEEDS, folders

from workbench import data, models
from workbench.core.runner import Workers
from workbench.experiments import results
from workbench.experiments.record import device_name, versions

FILE = Path(__file__).with_name("needles-seeds.json")


def run(part: tuple[str, int], runs: Path, device: str, samples: int) -> tuple[dict[str, str], str]:
    """Return a digit a question for every method on a task and training seed, and the device."""
    task, seed = part
    loaded = models.load(folders(runs)[seed], device)
    asked = data.load(f"needles-{task}", samples, SEED, PASSAGES)
    digits = right(loaded, asked, list(SPECS), 64 if device != "cpu" else 8)
    return digits, device_name(loaded.model.device)


def main() -> None:
    """Measure what is not there yet, and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=500, help="questions of a task")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of the trainings")
    parser.add_argument("--file", type=Path, default=FILE)
    args = parser.parse_args()
    about: dict[str, Any] = {
        "model": MODEL,
        "seed": SEED,
        "samples": args.samples,
        "passages": PASSAGES,
        "chunk": CHUNK,
    }
    before = results.read_json(args.file) if args.file.is_file() else {}
    same = all(before.get(name) == value for name, value in about.items())
    tasks: dict[str, dict[str, dict[str, str]]] = before["tasks"] if same else {task: {} for task in TASKS}
    parts = [(task, seed) for seed in SEEDS for task in TASKS if str(seed) not in tasks[task].get(SPECS[0], {})]
    work = partial(run, runs=args.runs, device=args.device, samples=args.samples)
    with Workers(args.processes) as workers:
        for (task, seed), outcome in workers.run(work, parts):
            digits, device = outcome.value()
            for spec, each in digits.items():
                by_seed = tasks[task].setdefault(spec, {}) | {str(seed): each}
                tasks[task][spec] = dict(sorted(by_seed.items()))
            results.write_json(args.file, {**about, "device": device, "versions": versions(), "tasks": tasks})
            print(task, seed, {spec: each.count("1") for spec, each in digits.items()}, flush=True)


if __name__ == "__main__":
    main()
