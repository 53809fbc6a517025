"""The cards of the shipped lab models: which training seed each is, and its scores on questions that did not choose it.

    python data/benchmarks/lab_card.py      writes choice.json and README.md of data/models/lab-full, and of
                                            lab-hard-small and lab-hard-large where they are shipped

Reads lab-seed-SEED.json (data/benchmarks/lab_model.sh) and lab-full-MODE.json (data/benchmarks/lab_full.sh); of the
harder lab lab-hard/SIZE-SEED.json (data/benchmarks/lab_hard.sh), or where that is not there the right answers in
faithful-SIZE_SEED.json (data/benchmarks/faithful.py), and lab-hard/shipped-SIZE-MODE.json
(data/benchmarks/lab_shipped.sh).
"""

import json
from pathlib import Path
from typing import Any

from workbench.experiments import answered_at_ratio, lab_hard_results, results
from workbench.metrics.answers import wilson
from workbench.training.lab import checkpoint

MODELS = Path(__file__).parents[1] / "models"
HELD_OUT = {"full": "full", "block": "independent blocks", "naive": "naive positions"}  # mode → as the card calls it
LOST = {"lab-hard-large": (1, 2)}  # training seeds whose weights were lost with the machine that trained them


def lab_full() -> tuple[dict[int, Any], dict[str, Any]]:
    """Return the scores of every training seed of lab-full, and its records on held-out questions by mode."""
    files = sorted(results.FOLDER.glob("lab-seed-*.json"))
    seeds = {int(path.stem.removeprefix("lab-seed-")): results.read(path.stem) for path in files}
    return seeds, {mode: results.read(f"lab-full-{mode}") for mode in HELD_OUT}


def choice(name: str = "lab-full") -> dict[str, Any]:
    """Return what `choice.json` of a shipped model holds."""
    if name == "lab-full":
        seeds, records = lab_full()
    else:
        seeds = lab_hard_results.by_seed(name) or of_faithful(name)
        records = lab_hard_results.shipped(name, list(HELD_OUT))
    passages = next(iter(records.values()))["trial"]["passages"]
    held_out = {f"{called}, {passages} passages": records[mode] for mode, called in HELD_OUT.items()}
    trained = json.loads((MODELS / name / checkpoint.TRAINING).read_text())["recipe"]["seed"]
    return checkpoint.choice_of(seeds, held_out, trained, LOST.get(name, ()))


def of_faithful(size: str) -> dict[int, dict[str, Any]]:
    """Return the scores of every training seed of a size under full attention and Full Reuse, as of `evaluate`."""
    methods = answered_at_ratio.FULL, answered_at_ratio.REUSE
    seeds: dict[int, dict[str, Any]] = {}
    for name, one in answered_at_ratio.kept(methods).items():
        if name.rpartition("-")[0] == size:
            seeds[int(name.rpartition("-")[2])] = {
                "samples": one["samples"],
                "seed": one["seed"],
                **{f"{method}, {one['passages']} passages": {"all": score(one, method)} for method in methods},
            }
    return dict(sorted(seeds.items()))


def score(one: answered_at_ratio.Kept, method: str) -> dict[str, float]:
    """Return {n, em, em_low, em_high} of the right answers under a method, with Wilson's interval."""
    right = answered_at_ratio.digits(one, method, "right")
    low, high = wilson(sum(right), len(right))
    return {"n": len(right), "em": sum(right) / len(right), "em_low": low, "em_high": high}


if __name__ == "__main__":
    for name in ("lab-full", "lab-hard-small", "lab-hard-large"):
        if (MODELS / name).is_dir():
            results.write_json(MODELS / name / checkpoint.CHOICE, choice(name))
            checkpoint.write_card(MODELS / name)
