"""Needles under dense attention, QUOKA and the union of block selections: figure 2 of CompactAttention.

    python data/benchmarks/needles.py --samples 2000 --device cuda          lab-full
    python data/benchmarks/needles.py --seeds --device cuda                 lab-hard-small over its training seeds

appends answers and counts to the results folder --out after every task and model; what it holds of as many questions
is not measured again. Seed, passages and chunks are those of sparse.py, so the first questions of a task are the same.
"""

import argparse
from pathlib import Path

import sparse_settings
from sparse_seeds import MODEL as HARD
from sparse_seeds import folders

from workbench import data, models, results
from workbench.experiments.trials.record import device_name, versions
from workbench.methods import sparse
from workbench.metrics.answers import exact_match
from workbench.metrics.tiles.side_by_side import compare_many

MODEL, SEED, PASSAGES, CHUNK = "lab-full", 40_000, 40, 512
TASKS = ("multi-key", "common")
SPECS = (
    "dense(block=64)",
    "quoka(block=64, keep=0.25)",
    "compact(over=flash_prefill(block=64, sink=1, window=2, tail=1, alpha=0.9))",
)
AT_ONCE = 24  # prompts


def right(loaded: models.Loaded, samples: list[data.Sample], together: int) -> dict[str, list[float]]:
    """Return 1 a question that a method answers right, by its spec."""
    methods = {spec: sparse.named(spec).ready(loaded.model) for spec in SPECS}
    prompts = loaded.layout.prompts(samples, loaded.tokenizer)
    found: dict[str, list[float]] = {spec: [] for spec in SPECS}
    for start in range(0, len(samples), AT_ONCE):
        compared = compare_many(loaded, prompts[start : start + AT_ONCE], methods, CHUNK, 24, False, together)
        for sample, by_spec in zip(samples[start:], compared, strict=False):
            for spec, one in by_spec.items():
                found[spec].append(exact_match(one.text, sample.answers))
    return found


def main() -> None:
    """Measure what is not there yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=500, help="questions of a task")
    parser.add_argument("--seeds", action="store_true", help="the trainings of sparse_seeds.py instead")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of the trainings")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    args = parser.parse_args()
    trained: dict[int | None, str] = {None: MODEL}
    if args.seeds:
        trained = dict(folders(args.runs).items())
    part, about = "trial@needles" + "-seeds" * args.seeds, {"seed": SEED, "passages": PASSAGES, "versions": versions()}
    about |= {"model": HARD if args.seeds else MODEL}
    with results.Writer(args.out, part, resume=True, **about, **results.this_run()) as out:
        there = {(row["data"], row["training_seed"]) for row in out.there("counts") if row["n"] >= args.samples}
        for seed, folder in trained.items():
            for task in TASKS:
                if (f"needles-{task}", seed) in there:
                    continue
                loaded = models.load(folder, args.device)
                samples = data.load(f"needles-{task}", args.samples, SEED, PASSAGES)
                where = {"data": f"needles-{task}", "training_seed": seed, "device": device_name(loaded.model.device)}
                for spec, scores in right(loaded, samples, 64 if args.device != "cpu" else 8).items():
                    method = where | sparse_settings.fields(spec, CHUNK)
                    out.answers(sparse_settings.answers(samples, scores, **method))
                    out.counts([sparse_settings.count(scores, **method)])
                print(task, folder, flush=True)


if __name__ == "__main__":
    main()
