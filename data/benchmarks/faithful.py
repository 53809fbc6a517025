"""How right answers are and how faithful to their passages: FusionRAG's table 2 and figure 2 on lab questions,
and what preparation gives each selector (figure 16).

    python data/benchmarks/faithful.py --samples 500
    for model in runs/lab-hard-*/model; do
        python data/benchmarks/faithful.py --model "$model" --data lab-hard --samples 1000 --device cuda
    done

writes `faithful` beside exact match of every answer: 1 where what the answer claims stands in its passages, said of the
same subject (lab facts can be read back). 15% of the tokens are recomputed where a selector chooses. Methods that are
written already are not measured again.
"""

import argparse
from pathlib import Path
from typing import Any

from workbench import data, models
from workbench.experiments.trials import rows
from workbench.experiments.trials.trial import Trial
from workbench.metrics.faithfulness import judge
from workbench.results import Writer, this_run
from workbench.results.reader import FOLDER

SEED, PASSAGES, RATIO = 30_000, 10, 0.15
TEN = "with_neighbours(n=10, search=exact)"
METHODS: dict[str, dict[str, Any]] = {
    "full attention": {"mode": "full"},
    "Full Reuse": {"prepare": "after_system"},
    "CacheBlend": {"prepare": "after_system", "select": "kv_deviation", "ratio": RATIO},
    "Cache-Craft": {"prepare": "after_system", "select": "inter_attention", "ratio": RATIO},
    "FusionRAG": {"prepare": TEN, "select": "query_guided", "ratio": RATIO},
    "CacheBlend, prepared": {"prepare": TEN, "select": "kv_deviation", "ratio": RATIO},
    "FusionRAG, unprepared": {"prepare": "after_system", "select": "query_guided", "ratio": RATIO},
    "Full Reuse, prepared": {"prepare": TEN},
}


def name_of(model: str) -> str:
    """Name a model: a shipped one, or the run that trained it."""
    path = Path(model)
    return path.parent.name if path.name == "model" else path.name


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="lab-full")
    parser.add_argument("--data", default="lab", help="lab, lab-hard, with switches in brackets")
    parser.add_argument("--samples", type=int, default=500)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=FOLDER)
    args = parser.parse_args()
    model = name_of(args.model)
    loaded = models.load(args.model, args.device)
    samples = data.load(args.data, args.samples, SEED, PASSAGES)
    decide = judge("lab")
    common = {"samples": args.samples, "seed": SEED, "passages": PASSAGES, "device": args.device, "timed": 1}
    size, _, number = model.rpartition("-")
    seeded = {"model": size, "training_seed": int(number)} if size and number.isdecimal() else {"model": model}
    with Writer(args.out, f"trial@faithful-{model}", resume=True, **this_run()) as out:
        there = {row["method"] for row in out.there("answers")}
        for name, settings in METHODS.items():
            if name in there:
                continue
            trial = Trial(args.model, args.data, fidelity=False, batch=32, **common, **({"mode": "block"} | settings))
            record, answered = trial.run_each(loaded=loaded)
            verdicts = decide(samples, [row["answer"] for row in answered])
            scored = [{**row, "faithful": float(bool(c) and all(c))} for row, c in zip(answered, verdicts, strict=True)]
            out.answers({**rows.origin(record, name), **seeded, **row} for row in rows.answers(scored))
            print(f"{name}: faithful {sum(r['faithful'] for r in scored):.0f}, right {record.em:.1%}", flush=True)


if __name__ == "__main__":
    main()
