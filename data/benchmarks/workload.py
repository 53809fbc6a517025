"""Simulated requests: hits of Alternative Path and prefix caches, and where block reuse overtakes prefix caching.

    python data/benchmarks/workload.py

writes counts of experiments "workload" (FusionRAG's workload of section 5.3.3) and "break-even" (hits and times to the
first token against popularity, order, pool, question and repeated requests), means over draws. No model
runs; times are from `experiments.latency.ttft_model`. One core, less than a minute.
"""

from dataclasses import replace
from typing import Any

from script import options

from workbench.experiments.latency.ttft_model import fit_ttft
from workbench.experiments.simulation import break_even, workload
from workbench.experiments.simulation.store_replay import CLOCK, SHAPE
from workbench.experiments.simulation.workload import Order, Workload
from workbench.results import Writer, this_run

PAPER = Workload()
VARIED: dict[str, Any] = {  # settings that the paper does not state, varied one at a time
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
    given = options(__doc__, seeds=5)
    seeds = range(given.seeds)
    origin = {"device": CLOCK, **this_run()}
    with Writer(given.out, "workload@simulated", **origin) as out:
        out.counts(workload.counts(PAPER, seeds))
        for name, values in VARIED.items():
            for value in values:
                out.counts(workload.counts(replace(PAPER, **{name: value}), seeds))
    model = fit_ttft()
    with Writer(given.out, "break-even@simulated", model=SHAPE, **origin) as out:
        for requests in break_even.workloads(ZIPFS, ORDERS, POOLS, REPEATS):
            out.counts(break_even.counts(requests, QUESTIONS, model, seeds))


if __name__ == "__main__":
    main()
