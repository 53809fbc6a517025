"""Serving from tiers of blocks on a simulated clock: scheduler modes against the request rate.

    python data/benchmarks/store_replay.py

writes counts of experiment "replay": 27K tokens of context a request as in FusionRAG's figures 14 and 15, 15%
recomputed, blocks of the Llama-3.1-8B shape over three tiers; full prefill by the same engine as baseline. A minute or
two on one core.
"""

from dataclasses import replace

from script import options

from workbench.experiments.simulation.store_replay import CLOCK, GB, SHAPE, Machine, counts, replay, requests_of
from workbench.methods.serving.scheduler import Mode
from workbench.metrics.published_numbers import FUSION_RAG
from workbench.results import Writer, this_run

PASSAGES, POOL, REQUESTS, ZIPF = 54, 2_000, 80, 1.0
RATES = (0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
MACHINE = Machine({"GPU": 40 * GB, "host": 100 * GB, "disk": 200 * GB}, ratio=FUSION_RAG["ratio"])
CANDIDATES: dict[str, tuple[Mode, bool]] = {  # scheduler mode, and whether cached blocks are reused
    "sync": ("sync", True),
    "request": ("request", True),
    "layer": ("layer", True),
    "full prefill": ("request", False),
}


def main() -> None:
    """Replay every rate, candidate and seed that is not in the results yet."""
    given = options(__doc__, seeds=5)
    setting = {"passages": PASSAGES, "pool": POOL, "requests": REQUESTS, "zipf": ZIPF, **MACHINE.setting}
    origin = {"model": SHAPE, "device": CLOCK, "setting": setting, **this_run()}
    with Writer(given.out, "replay@scheduler", resume=True, **origin) as out:
        there = {row["seed"] for row in out.rows_written("counts")}
        for seed in (seed for seed in range(given.seeds) if seed not in there):
            requests, rows = requests_of(ZIPF, REQUESTS, POOL, PASSAGES, seed), []
            for rate in RATES:
                for name, (mode, reuse) in CANDIDATES.items():
                    machine = replace(MACHINE, per_second=rate, reuse=reuse)
                    done = counts(replay(requests, machine, mode, range(POOL), seed))
                    about = {"method": name, "seed": seed, **({"ratio": MACHINE.ratio} if reuse else {})}
                    rows += [{**about, **row} for row in done]
            out.counts(rows)
            print(f"seed {seed}", flush=True)


if __name__ == "__main__":
    main()
