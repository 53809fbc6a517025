"""Block-Attention's table 2 over training seeds: models of lab_block.sh on the questions of block_attention.py.

    RUNS="mixed-1 mixed-2" bash data/benchmarks/lab_block.sh
    python data/benchmarks/block_seeds.py --device cuda --processes 4

writes block-seeds.json: by method and training seed a digit a question ("1": right), in the order of the questions,
and the minutes that a training took. A model is runs/lab-block-KIND-SEED/model, KIND is mixed, naive or full; mixed-0
is lab-block, which ships. What the file holds for as many questions is not measured again; `--join` takes in files of
other runs of this script, on the same questions, before.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from workbench import models
from workbench.core.runner import Workers
from workbench.experiments import block_seeds, results
from workbench.experiments.trial import Trial

OUT = Path(__file__).with_name("block-seeds.json")
Job = tuple[str, str, Trial]  # method, training seed and what is run
SEED, PASSAGES = 30_000, 10  # as in block_attention.py
BEFORE = ("full attention", "block, not fine-tuned")
METHODS: dict[str, dict[str, dict[str, Any]]] = {  # kind of a run: methods, as in block_attention.py, and their fields
    "before": {BEFORE[0]: {"mode": "full"}, BEFORE[1]: {"mode": "block"}},
    "mixed": {"block fine-tuned": {"mode": "block"}, "block fine-tuned, full mode": {"mode": "full"}},
    "naive": {"fine-tuned without positions": {"mode": "block", "positions": "naive"}},
    "full": {
        "fine-tuned in full mode alone": {"mode": "block"},
        "fine-tuned in full mode alone, full mode": {"mode": "full"},
    },
}


def trained(runs: Path) -> dict[str, str]:
    """Return name or folder of every model, by its run: KIND-SEED."""
    found = {"before-0": "lab-full", "mixed-0": "lab-block"}
    folders = sorted(runs.glob("lab-block-*-*/model/model.safetensors"))
    return found | {path.parts[-3].removeprefix("lab-block-"): str(path.parent) for path in folders}


def jobs(found: dict[str, str], held: dict[str, dict[str, str]], common: dict[str, Any]) -> Iterator[Job]:
    """Yield what is not measured yet."""
    for run, model in found.items():
        kind, _, seed = run.rpartition("-")
        for name, fields in METHODS.get(kind, {}).items():
            if len(held.get(name, {}).get(seed, "")) != common["samples"]:
                yield name, seed, Trial(model=model, **fields, **common)


def answer(job: Job) -> tuple[str, float, str, dict[str, str]]:
    """Answer all questions; return digits, the minutes of the training, device and versions."""
    _, _, trial = job
    record, rows = trial.run_each()
    about = models.folder(trial.model) / "tuning.json"
    minutes = json.loads(about.read_text())["minutes"] if about.is_file() else 0.0
    return results.entry(record, rows)["right"], minutes, record.device, record.versions


def together(files: list[Path], samples: int) -> dict[str, Any]:
    """Read files that are there and of so many questions as one; the last says the device."""
    held: dict[str, Any] = {"methods": {}, "minutes": {}}
    for one in (results.read_json(path) for path in files if path.is_file()):
        if one["samples"] == samples:
            for part in ("methods", "minutes"):
                for name, by_seed in one[part].items():
                    held[part].setdefault(name, {}).update(by_seed)
            held |= {key: value for key, value in one.items() if key not in ("methods", "minutes")}
    return held


def device_names(before: str, device: str) -> str:
    """Return the names of all devices that answered, each once."""
    return " and ".join(dict.fromkeys([*before.split(" and "), device])) if before else device


def ordered(held: dict[str, Any]) -> dict[str, Any]:
    """Return the content of the file: what is said of all first, methods as METHODS has them, seeds by number."""
    names = [name for methods in METHODS.values() for name in methods]
    parts = {
        part: {name: dict(sorted(held[part][name].items())) for name in names if name in held[part]}
        for part in ("methods", "minutes")
    }
    return {key: value for key, value in held.items() if key not in parts} | parts


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of the trainings")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--join", type=Path, nargs="*", default=[], help="files of other runs, taken in before")
    args = parser.parse_args()
    common = {"samples": args.samples, "seed": SEED, "passages": PASSAGES, "batch": 64, "timed": 1}
    held = together([*args.join, args.out], args.samples)
    todo = list(jobs(trained(args.runs), held["methods"], {**common, "device": args.device}))
    with Workers(args.processes) as workers:
        for (name, seed, _), outcome in workers.run(answer, todo):
            right, minutes, device, versions = outcome.value()
            held["methods"].setdefault(name, {})[seed] = right
            held["minutes"].setdefault(name, {})[seed] = minutes
            about = {"samples": args.samples, "seed": SEED, "passages": PASSAGES}
            held |= {**about, "device": device_names(held.get("device", ""), device), "versions": versions}
            results.write_json(args.out, ordered(held))
            print(name, seed, f"{right.count('1') / len(right):.4f}", flush=True)
    if args.join:
        results.write_json(args.out, ordered(held))
    print(block_seeds.summary(held["methods"]))


if __name__ == "__main__":
    main()
