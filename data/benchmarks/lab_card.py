"""The cards of the shipped lab models: which training seed each is, and its scores on questions that did not choose it.

    python data/benchmarks/lab_card.py      writes choice.json and README.md of data/models/lab-full, and of
                                            lab-hard-small and lab-hard-large where they are shipped

Reads lab-seed-SEED.json (data/benchmarks/lab_model.sh) and lab-full-MODE.json (data/benchmarks/lab_full.sh); of the
harder lab lab-hard/SIZE-SEED.json (data/benchmarks/lab_hard.sh) and lab-hard/shipped-SIZE-MODE.json
(data/benchmarks/lab_shipped.sh).
"""

import json
from pathlib import Path
from typing import Any

from workbench.experiments import lab_hard_results, results
from workbench.training.lab import checkpoint

MODELS = Path(__file__).parents[1] / "models"
HELD_OUT = {"full": "full", "block": "independent blocks", "naive": "naive positions"}  # mode → as the card calls it


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
        seeds = lab_hard_results.by_seed(name)
        records = lab_hard_results.shipped(name, list(HELD_OUT))
    passages = next(iter(records.values()))["trial"]["passages"]
    held_out = {f"{called}, {passages} passages": records[mode] for mode, called in HELD_OUT.items()}
    trained = json.loads((MODELS / name / checkpoint.TRAINING).read_text())["recipe"]["seed"]
    return checkpoint.choice_of(seeds, held_out, trained)


if __name__ == "__main__":
    for name in ("lab-full", "lab-hard-small", "lab-hard-large"):
        if (MODELS / name).is_dir():
            results.write_json(MODELS / name / checkpoint.CHOICE, choice(name))
            checkpoint.write_card(MODELS / name)
