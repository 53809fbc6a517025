"""Serving from tiers of blocks on a simulated clock: modes of the scheduler against the rate of requests.

    python data/benchmarks/store_replay.py

writes store_replay.json: 27K tokens of context a request as in FusionRAG's figures 14 and 15, 15% recomputed, blocks of
the Llama-3.1-8B shape over three tiers; full prefill by the same engine beside. A minute or two on one core.
"""

import argparse
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from workbench.experiments import results
from workbench.experiments.simulated_machine import GB, Machine
from workbench.experiments.store_replay import replay, requests_of, summary
from workbench.methods.serving.scheduler import Mode
from workbench.metrics.published_numbers import FUSION_RAG

OUT = Path(__file__).with_name("store_replay.json")
PASSAGES, POOL, REQUESTS, ZIPF = 54, 2_000, 80, 1.0
RATES = (0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
MACHINE = Machine({"GPU": 40 * GB, "host": 100 * GB, "disk": 200 * GB}, ratio=FUSION_RAG["ratio"])
WAYS: dict[str, tuple[Mode, bool]] = {  # mode of the scheduler, and whether cached blocks are reused
    "sync": ("sync", True),
    "request": ("request", True),
    "layer": ("layer", True),
    "full prefill": ("request", False),
}


def main() -> None:
    """Replay every rate, way and seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    rows = []
    for seed in range(given.seeds):
        requests = requests_of(ZIPF, REQUESTS, POOL, PASSAGES, seed)
        for rate in RATES:
            for way, (mode, reuse) in WAYS.items():
                machine = replace(MACHINE, per_second=rate, reuse=reuse)
                done = replay(requests, machine, mode, range(POOL), seed)
                rows.append({"way": way, "rate": rate, "seed": seed, **summary(done)})
        print(f"seed {seed}", flush=True)
    described: dict[str, Any] = {
        name: dict(value) if hasattr(value, "items") else value for name, value in asdict(MACHINE).items()
    }
    described["rates"]["GPU"] = None  # read in place
    about = {"command": "python data/benchmarks/store_replay.py", "seeds": given.seeds, "machine": described}
    about |= {"passages": PASSAGES, "pool": POOL, "requests": REQUESTS, "zipf": ZIPF}
    results.write_json(given.out, about | {"rows": rows})


if __name__ == "__main__":
    main()
