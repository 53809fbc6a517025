"""FusionRAG's comparison on the lab model: every selector at every ratio, preparations, numbers of neighbours.

    python data/benchmarks/fusion.py --samples 2000 --jobs 2

writes the part trial@fusion of the shipped results. Trials that runs/fusion holds are not run again. `--part heavy` are
those that compute whole contexts, for a GPU, `--part light` the others; `--collect` takes in what is there.
"""

import argparse
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from workbench.experiments.sweeps import sweep
from workbench.experiments.sweeps.sweep_grid import Case
from workbench.experiments.sweeps.sweep_grid import cases as cases_of
from workbench.experiments.trials.trial import Trial
from workbench.results import merge, read
from workbench.results.reader import FOLDER

SEED = 30_000  # of worlds that neither trained nor chose the model
RATIOS = [0.05, 0.1, 0.15, 0.2, 0.3, 0.5]
CHEAP = (
    "random first_k kv_deviation kv_deviation(part=v) "
    "query_guided query_guided(layers=all) query_guided(tokens=last) answer_guided"
).split()
WHOLE = ["oracle", "inter_attention"]  # selectors that compute the whole context to score it
TEN = "with_neighbours(n=10, search=exact)"


def grids(part: str) -> Iterator[dict[str, list[Any]]]:
    """Lists of fields, the most wanted first."""
    block = {"mode": ["block"]}
    if part != "heavy":
        yield block | {"prepare": ["after_system", TEN, "independent"], "select": ["none"]}
        yield block | {"prepare": ["after_system"], "select": CHEAP, "ratio": RATIOS}
        yield block | {"prepare": [TEN], "select": ["query_guided", "answer_guided"], "ratio": RATIOS}
        similar = ["random", "first_k", "kv_deviation", "query_guided(layers=all)"]
        yield block | {"prepare": [TEN], "select": similar, "ratio": [0.15]}
        few = ["answer_guided", "query_guided", "random"]
        yield block | {"prepare": ["after_system"], "select": few, "ratio": [0.01, 0.02]}
        more = [f"with_neighbours(n={n}, search=exact)" for n in (1, 2, 5, 20)]
        yield block | {"prepare": more, "select": ["none", "query_guided"], "ratio": [0.15]}
        yield block | {"prepare": ["independent"], "select": ["query_guided", "answer_guided"], "ratio": [0.15]}
    if part != "light":
        yield {"mode": ["full"]}
        yield block | {"prepare": ["after_system"], "select": ["all"], "ratio": [1.0]}
        yield block | {"prepare": ["after_system"], "select": ["cache_craft"], "ratio": [None]}
        yield block | {"prepare": ["after_system"], "select": WHOLE, "ratio": RATIOS}
        yield block | {"prepare": ["after_system"], "select": ["query_guided"], "ratio": [1.0]}
        yield block | {"prepare": [TEN], "select": WHOLE, "ratio": [0.15]}


def cases(part: str, samples: int, device: str) -> list[Case]:
    """Return every trial once."""
    base = Trial("lab-full", samples=samples, seed=SEED, passages=10, batch=32, timed=5, device=device)
    by_trial = {case.trial: case for grid in grids(part) for case in cases_of(asdict(base), grid)}
    return list(by_trial.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--part", choices=("all", "light", "heavy"), default="all")
    parser.add_argument("--out", type=Path, default=Path("runs/fusion"))
    parser.add_argument("--collect", action="store_true", help="only take in what runs/fusion holds")
    args = parser.parse_args()
    if not args.collect:
        listed = cases(args.part, args.samples, args.device)
        print(f"{len(listed)} trials", flush=True)
        outcome = sweep.run(listed, args.out / args.part, args.jobs, keep_gib=8)
        for name, why in outcome.failures.items():
            print(f"failed: {name}: {why}")
    merge(read([f"fusion={args.out}"]), FOLDER, "trial@fusion")


if __name__ == "__main__":
    main()
