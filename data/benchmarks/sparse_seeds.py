"""Sparse methods over training seeds: right answers of the three trainings of a size of the harder lab.

    python data/benchmarks/sparse_seeds.py --device cuda --processes 14

leaves, in the results folder --results, by setting and training seed exact match of every question, the density and
that after CompactAttention's union, means over the first prompts. Settings are some of sparse.py, prompts of 40
passages are prefilled in chunks of 512 rows, the worlds neither trained nor chose a model. Models: RUNS/lab-hard-
small-SEED/model, as data/benchmarks/lab_hard.sh leaves them, in 8 bits (`workbench lab ship --storage int8`); that of
seed 3 is the shipped one. What OUT holds is not computed again; `--minutes` begins nothing new after that, and the
file is written of the questions that all seeds have answered.
"""

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Mapping
from functools import lru_cache, partial
from pathlib import Path
from statistics import fmean
from typing import Any

import sparse_settings
from sparse_settings import FLASH

from workbench import data, models
from workbench import results as tables
from workbench.core.tiling import tile_grid
from workbench.core.utils.files import write_text
from workbench.core.utils.runner import Workers
from workbench.experiments.trials.record import device_name, versions
from workbench.methods import sparse
from workbench.metrics import answers
from workbench.metrics.tiles.side_by_side import compare_many

MODEL, SEEDS, SHIPPED = "lab-hard-small", (1, 2, 3), 3
DATA, SEED, PASSAGES, CHUNK = "lab-hard", 40_000, 40, 512
SPECS = (  # of sparse.py: each method near a third of the pairs, and random tiles beside
    "dense(block=64)",
    "bfla(block=64, flat=4, local=1, mass=0.9)",
    "bfla(block=64, flat=4, local=1, mass=0.99)",
    "bfla(block=64, flat=4, local=1, mass=0.999)",
    FLASH.format(0.9),
    "xattention(block=64, threshold=0.5)",
    "quoka(block=64, keep=0.05)",
    "quoka(block=64, keep=0.25)",
    "vertical_slash(vertical=32, slash=16, front=4, near=8)",
    f"compact(over={FLASH.format(0.9)})",
    "random(share=0.1)",
    "random(share=0.25)",
)
SHARES = ("density", "union")  # of causal pairs: what a method chooses, and what CompactAttention makes of it
Unit = tuple[int, int, int]  # training seed, first question, number of questions


def folders(runs: Path) -> dict[int, str]:
    """Return name or folder of the model of every training seed."""
    return {seed: str(runs / f"{MODEL}-{seed}" / "model") for seed in SEEDS} | {SHIPPED: MODEL}


@lru_cache(maxsize=1)
def loaded(folder: str, device: str) -> models.Loaded:
    """Load a model once a process."""
    if device == "cpu":
        tile_grid.ELEMENTS = 1 << 21  # parts that stay in the cache: half the time
    return models.load(folder, device)


@lru_cache(maxsize=1)
def questions(count: int) -> list[data.Sample]:
    """Draw the questions once a process."""
    return data.load(DATA, count, SEED, PASSAGES)


def run(unit: Unit, runs: Path, device: str, samples: int, measured: int, end: float) -> dict[str, Any] | None:
    """Answer the questions of a unit under every setting; None where it is too late (a moment of the wall clock, s)."""
    if time.time() >= end:
        return None
    seed, start, count = unit
    lm = loaded(folders(runs)[seed], device)
    asked = questions(samples)[start : start + count]
    methods = {spec: sparse.named(spec).ready(lm.model) for spec in SPECS}
    prompts, few = lm.layout.prompts(asked, lm.tokenizer), max(0, min(count, measured - start))
    together = 64 if lm.model.device.type == "cuda" else 8
    compared = [
        *compare_many(lm, prompts[:few], methods, CHUNK, 24, True, together),
        *compare_many(lm, prompts[few:], methods, CHUNK, 24, False, together),
    ]
    by_spec: dict[str, Any] = {}
    for spec in SPECS:
        pairs = zip(asked, compared, strict=True)
        right = [int(answers.exact_match(each[spec].text, sample.answers)) for sample, each in pairs]
        measured_of = [each[spec].measures() for each in compared[:few]]
        shares = {name: [measures[name] for measures in measured_of] for name in SHARES}
        by_spec[spec] = {"right": "".join(map(str, right)), **shares}
    return {"settings": by_spec, "tokens": [len(prompt) for prompt in prompts], "device": device_name(lm.model.device)}


def joined(units: Mapping[Unit, Mapping[str, Any]], samples: int) -> dict[str, Any]:
    """Join units into the content of the file: of the questions from the first on that all seeds have answered."""
    ends = {}
    for seed in SEEDS:
        there = sorted((start, count) for of, start, count in units if of == seed)
        ends[seed] = 0
        for start, count in there:
            ends[seed] += count if start == ends[seed] else 0
    n = min(samples, *ends.values())
    settings: dict[str, dict[str, dict[str, Any]]] = defaultdict(
        lambda: defaultdict(lambda: {"right": "", **{name: [] for name in SHARES}})
    )
    tokens: list[int] = []
    for (seed, start, _), unit in sorted(units.items()):
        if start < ends[seed]:
            tokens += unit["tokens"]
            for spec, found in unit["settings"].items():
                settings[spec][str(seed)]["right"] += found["right"]
                for name in SHARES:
                    settings[spec][str(seed)][name] += found[name]
    about = {"model": MODEL, "data": DATA, "seed": SEED, "samples": n, "passages": PASSAGES, "chunk": CHUNK}
    about |= {"tokens": fmean(tokens), "device": next(iter(units.values()))["device"], "versions": versions()}
    kept = {
        spec: {
            seed: {
                "right": each["right"][:n],
                **{name: fmean(each[name]) for name in SHARES},
                "prompts": len(each[SHARES[0]]),
            }
            for seed, each in by_seed.items()
        }
        for spec, by_seed in settings.items()
    }
    return about | {"settings": {spec: kept[spec] for spec in SPECS}}


def write(content: Mapping[str, Any], folder: Path) -> None:
    """Write answers and counts of every setting and training seed into a results folder."""
    asked = questions(content["samples"])
    about = {name: content[name] for name in ("model", "data", "seed", "passages", "device", "versions")}
    with tables.Writer(folder, "trial@sparse-seeds", **about, **tables.this_run()) as out:
        for spec, by_seed in content["settings"].items():
            for seed, one in by_seed.items():
                method = {**sparse_settings.fields(spec, CHUNK), "training_seed": int(seed)}
                right = [float(digit) for digit in one["right"]]
                out.answers(sparse_settings.answers(asked, right, **method))
                shares = [{"kind": "all", "measure": x, "value": one[x], "n": one["prompts"]} for x in SHARES]
                shares.append({"kind": "all", "measure": "prompt_tokens", "value": content["tokens"]})
                out.counts([sparse_settings.count(right, **method), *({**method, **share} for share in shares)])


def main() -> None:
    """Measure what is not there yet, and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=500)
    parser.add_argument("--measured", type=int, default=48, help="prompts of a seed whose density is taken")
    parser.add_argument("--size", type=int, default=8, help="questions of a unit of work")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=600, help="begin no unit after so many")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of the trainings")
    parser.add_argument("--out", type=Path, default=Path("runs/sparse-seeds"), help="folder of finished units")
    parser.add_argument("--results", type=Path, default=Path(__file__).parent, help="results folder")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    end = time.time() + 60 * args.minutes
    starts = range(0, args.samples, args.size)
    units: list[Unit] = [(seed, start, min(args.size, args.samples - start)) for start in starts for seed in SEEDS]
    paths = {unit: args.out / "{}-{:05}-{}.json".format(*unit) for unit in units}
    todo = [unit for unit in units if not paths[unit].is_file()]
    given = {"runs": args.runs, "device": args.device, "samples": args.samples, "measured": args.measured, "end": end}
    print(f"{len(todo)} of {len(units)} units to do, {len(SPECS)} settings", flush=True)
    with Workers(args.processes) as workers:
        for unit, outcome in workers.run(partial(run, **given), todo):
            if (found := outcome.value()) is not None:
                write_text(paths[unit], json.dumps(found))
                print("{}-{:05}-{}".format(*unit), flush=True)
    made = {unit: json.loads(path.read_text()) for unit, path in paths.items() if path.is_file()}
    write(joined(made, args.samples), args.results)


if __name__ == "__main__":
    main()
