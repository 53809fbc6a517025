"""Block-Attention's table 2 on the lab model, over training runs: all methods on the questions of held-out worlds.

    RUNS="mixed-1 mixed-2 full-1 naive-1" bash data/benchmarks/lab_block.sh
    python data/benchmarks/block_attention.py --device cuda --processes 4

A model is runs/lab-block-KIND-SEED/model, KIND is mixed, naive or full (fine-tuned in both modes, without positions, in
full mode alone); mixed-0 is lab-block, which ships. What is written for as many questions is not measured again.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from workbench.core.utils.runner import Workers
from workbench.experiments.trials import rows
from workbench.experiments.trials.record import Record
from workbench.experiments.trials.trial import Trial
from workbench.results import Writer, this_run
from workbench.results.reader import FOLDER

SEED, PASSAGES = 30_000, 10  # of worlds that neither trained nor chose a model
METHODS: dict[str, dict[str, dict[str, Any]]] = {  # kind of a training: methods and the fields of their trials
    "before": {
        "full attention": {"mode": "full"},
        "Superposition": {"mode": "superposition"},
        "PromptCache": {"mode": "block", "positions": "naive"},
        "block, not fine-tuned": {"mode": "block"},
    },
    "mixed": {"block fine-tuned": {"mode": "block"}, "block fine-tuned, full mode": {"mode": "full"}},
    "naive": {"fine-tuned without positions": {"mode": "block", "positions": "naive"}},
    "full": {
        "fine-tuned in full mode alone": {"mode": "block"},
        "fine-tuned in full mode alone, full mode": {"mode": "full"},
    },
}
Job = tuple[str, str, int | None, Trial]  # method, name of the model, training seed and what is run


def jobs(runs: Path, common: dict[str, Any]) -> Iterator[Job]:
    """Yield every method of every model there is."""
    found = {"before-0": "lab-full", "mixed-0": "lab-block"}
    found |= {path.parts[-2].removeprefix("lab-block-"): str(path) for path in sorted(runs.glob("lab-block-*-*/model"))}
    for run, model in found.items():
        kind, _, seed = run.rpartition("-")
        name = {"before": "lab-full", "mixed": "lab-block"}.get(kind, f"lab-block-{kind}")
        for method, fields in METHODS.get(kind, {}).items():
            yield method, name, None if kind == "before" else int(seed), Trial(model=model, **fields, **common)


def run(job: Job) -> tuple[Record, list[dict[str, Any]]]:
    """Answer all questions."""
    return job[-1].run_each()


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of the trainings")
    parser.add_argument("--out", type=Path, default=FOLDER)
    args = parser.parse_args()
    common = {"samples": args.samples, "seed": SEED, "passages": PASSAGES, "batch": 64, "timed": 50}
    with Writer(args.out, "trial@block-tuning", resume=True, **this_run()) as out, Workers(args.processes) as workers:
        there = {(row["method"], row["training_seed"]) for row in out.there("answers")}
        todo = [job for job in jobs(args.runs, {**common, "device": args.device}) if (job[0], job[2]) not in there]
        for (method, model, seed, _), outcome in workers.run(run, todo):
            record, answers = outcome.value()
            origin = {**rows.origin(record, method), "model": model, "training_seed": seed, "setting": {}}
            out.answers({**origin, **row} for row in rows.answers(answers))
            out.counts({**origin, **row} for row in rows.counts(record))
            print(f"{method}, {model} {seed}: {record.em:.4f}", flush=True)


if __name__ == "__main__":
    main()
