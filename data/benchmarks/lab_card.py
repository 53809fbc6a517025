"""The card of the shipped lab model: which training seed it is, and its scores on questions that did not choose it.

    python data/benchmarks/lab_card.py      writes choice.json and README.md of data/models/lab-full

Reads lab-seed-SEED.json (data/benchmarks/lab_model.sh) and lab-full-MODE.json (data/benchmarks/lab_full.sh).
"""

import json
from pathlib import Path
from typing import Any

from workbench.experiments import results
from workbench.training.lab import checkpoint

SHIPPED = Path(__file__).parents[1] / "models" / "lab-full"
HELD_OUT = {"full": "full", "block": "independent blocks", "naive": "naive positions"}  # mode → as the card calls it


def choice() -> dict[str, Any]:
    """Return what `choice.json` holds."""
    files = sorted(results.FOLDER.glob("lab-seed-*.json"))
    seeds = {int(path.stem.removeprefix("lab-seed-")): results.read(path.stem) for path in files}
    records = {mode: results.read(f"lab-full-{mode}") for mode in HELD_OUT}
    passages = next(iter(records.values()))["trial"]["passages"]
    held_out = {f"{name}, {passages} passages": records[mode] for mode, name in HELD_OUT.items()}
    trained = json.loads((SHIPPED / checkpoint.TRAINING).read_text())["recipe"]["seed"]
    return checkpoint.choice_of(seeds, held_out, trained)


if __name__ == "__main__":
    results.write_json(SHIPPED / checkpoint.CHOICE, choice())
    checkpoint.write_card(SHIPPED)
