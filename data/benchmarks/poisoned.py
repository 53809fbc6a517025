"""What an attacker's text does to the cached passage of another prompt, and how much recomputation undoes it.

    python data/benchmarks/poisoned.py --victims 64

writes poisoned.json: `experiments.poisoned` on questions of the lab, one a set of passages.
"""

import argparse
from collections import Counter
from pathlib import Path
from typing import Any

from workbench import data, models
from workbench.experiments import poisoned, results
from workbench.experiments.record import device_name, versions
from workbench.experiments.victims import victims_of

OUT = Path(__file__).with_name("poisoned.json")
MODEL, SEED, PASSAGES, SAMPLES = "lab-full", 90_000, 10, 2_400
RATIOS, NEIGHBOURS = (0.0, 0.05, 0.15, 0.3, 0.5, 1.0), (1, 10)


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--victims", type=int, default=64)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    loaded = models.load(MODEL, given.device)
    victims = victims_of(loaded, data.load("lab", SAMPLES, SEED, PASSAGES), given.victims)
    reasons = Counter(miss.reason for miss in poisoned.misses(loaded, victims))
    rows = poisoned.measured(loaded, victims, RATIOS, NEIGHBOURS, lambda done, of: print(f"{done} of {of}", flush=True))
    about: dict[str, Any] = {"model": MODEL, "data": "lab", "seed": SEED, "passages": PASSAGES, "n": len(victims)}
    example = {"question": victims[0].sample.question, "answer": victims[0].sample.answers[0]}
    example |= {"target": victims[0].target, "text": victims[0].poison.text}
    about |= {"example": example}
    about |= {"misses": dict(reasons), "device": device_name(loaded.model.device), "versions": versions()}
    results.write_json(given.out, about | {"rows": rows})


if __name__ == "__main__":
    main()
