"""Simulated requests: what Alternative Path keeps and finds beside prefix caches, and where block reuse overtakes them.

    python data/benchmarks/workload.py

writes workload.json (FusionRAG's workload of section 5.3.3, a row a setting, seed and cache) and break_even.parquet
(hits and times to the first token against popularity, order, pool, question and repeated requests). Passages are
numbers, nothing is computed; times are of `experiments.ttft_model`, fitted to the reports beside this file. One core,
less than a minute.
"""

import argparse
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from workbench.experiments import break_even, results
from workbench.experiments.paper_workload import replayed
from workbench.experiments.ttft_model import fitted
from workbench.experiments.workload import Order, Workload

HERE = Path(__file__).parent
PAPER = Workload()
VARIED: dict[str, Any] = {  # what the paper does not say, one after the other
    "passages": ((5, 5), (10, 10), (20, 20)),
    "knowledge": (250, 500, 2_000, 4_000),
    "uploads": (250, 500, 2_000, 4_000),
    "zipf": (0.0, 0.5, 1.5, 2.0),
    "order": ("fixed", "shuffled"),
}
ZIPFS = (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0)
ORDERS: tuple[Order, ...] = ("fixed", "relevance", "shuffled")
POOLS, QUESTIONS, REPEATS = (100, 1_000, 10_000), (20, 50, 200, 1_000), (0.0, 0.25, 0.5, 0.75, 0.9, 0.97)


def main() -> None:
    """Run all settings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="draws of every setting")
    parser.add_argument("--out", type=Path, default=HERE, help="folder that is written to")
    given = parser.parse_args()
    seeds = range(given.seeds)
    settings = [PAPER, *(replace(PAPER, **{name: one}) for name, values in VARIED.items() for one in values)]
    rows = [row for setting in settings for seed in seeds for row in replayed(setting, seed)]
    about = {"command": "python data/benchmarks/workload.py", "seeds": given.seeds, "default": asdict(PAPER)}
    results.write_json(given.out / "workload.json", about | {"rows": rows})
    grid = break_even.grid(fitted(), ZIPFS, ORDERS, POOLS, QUESTIONS, REPEATS, seeds)
    grid.to_parquet(given.out / "break_even.parquet", index=False)
    print(f"{len(rows)} and {len(grid)} rows")


if __name__ == "__main__":
    main()
