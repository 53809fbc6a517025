"""The worth of last rows that attend to everything: FlashPrefill and SeerAttention without that rule, on the lab
questions of sparse.py.

    python data/benchmarks/last_rows.py
    python data/benchmarks/last_rows.py --only seer_attention

writes answers and counts of every method without the rule into the results folder --out; its spec with the rule is a
setting of sparse.py. A gate that was distilled on prompts that are scored is refused.
"""

import argparse
from pathlib import Path
from typing import Any

from workbench import models, results
from workbench.experiments.trials import rows
from workbench.experiments.trials.record import Record
from workbench.experiments.trials.trial import Trial
from workbench.methods.seer_gate import FILE, check_unseen

MODEL, SEED, PASSAGES, CHUNK = "lab-full", 40_000, 40, 512  # as in sparse.py
SPECS = (  # of sparse.py; about a third of the pairs
    "flash_prefill(block=64, sink=1, window=2, tail=1, alpha=0.5)",
    "seer_attention(tail=1, threshold=0.06)",
)


def run(spec: str, samples: int, device: str) -> tuple[Record, list[dict[str, Any]]]:
    """Return the record and the questions of a method without the rule."""
    if spec.startswith("seer_attention"):
        check_unseen(models.folder(MODEL) / FILE, "lab", SEED, range(samples))
    about: dict[str, Any] = {"samples": samples, "seed": SEED, "passages": PASSAGES, "device": device, "timed": 10}
    return Trial(MODEL, mode="full", sparse=spec.replace("tail=1", "tail=0"), chunk=CHUNK, **about).run_each()


def main() -> None:
    """Measure, and write each method as it ends."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=500)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", choices=[spec.partition("(")[0] for spec in SPECS], help="measure one method alone")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    args = parser.parse_args()
    for spec in SPECS:
        name = spec.partition("(")[0]
        if args.only not in (None, name):
            continue
        record, questions = run(spec, args.samples, args.device)
        with results.Writer(args.out, f"trial@last-rows-{name}", **results.this_run(), **rows.origin(record)) as out:
            out.answers(rows.answers(questions))
            out.counts(rows.counts(record))


if __name__ == "__main__":
    main()
