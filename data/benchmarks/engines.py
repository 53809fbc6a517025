"""Both engines of `generate` on the same questions: are the greedy tokens equal, and how much faster are pages?

    python data/benchmarks/engines.py --device cuda --minutes 9
    python data/benchmarks/engines.py --device cuda --minutes 9   # again: goes on with what is missing
    python data/benchmarks/engines.py --device cuda --tokens    tokens alone, no times: other work may use the GPU
    python data/benchmarks/engines.py --device cpu --lab 6 --real 0 --decoded 4 --count 8 --out /tmp/engines.json

writes engines.json: for a model and a method, questions and tokens a second of each engine, one request at a time and
16 at a time, over an empty store and a warm one; how many answers have the same tokens, and of what kind the others
are; and tokens a second of decoding alone. With `--tokens`, answers of pages beside those of the contiguous engine one
at a time; begun again, it goes on where it stopped. `--lab` and `--real` are numbers of questions, 0 for none.
"""

import argparse
from pathlib import Path
from time import perf_counter
from typing import Any

import engine_speed
import engine_tokens
import torch

from workbench import data, models
from workbench.experiments import results
from workbench.experiments.trials.record import device_name, versions
from workbench.experiments.trials.trial import Trial

OUT = Path(__file__).with_name("engines.json")
SIZES = (1, 16)
FEW = 200  # questions of the methods besides the first
METHODS: dict[str, dict[str, Any]] = {
    "block": {"mode": "block"},
    "full": {"mode": "full"},
    "FusionRAG 15%": {"mode": "block", "select": "query_guided", "ratio": 0.15},
    "CacheBlend 15%": {"mode": "block", "select": "kv_deviation", "ratio": 0.15},
    "answer-guided 15%": {"mode": "block", "select": "answer_guided", "ratio": 0.15},
    "BFLA": {"mode": "full", "sparse": "bfla"},
    "superposition": {"mode": "superposition"},
}


def main() -> None:
    """Measure what is missing, and write after every unit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--lab", type=int, default=2000)
    parser.add_argument("--real", type=int, default=200)
    parser.add_argument("--model", default="lab-block")
    parser.add_argument("--real-model", default="smollm2")
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "float32"])
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), choices=SIZES, help="answered at a time")
    parser.add_argument("--decoded", type=int, default=32, help="prompts of the decoding alone")
    parser.add_argument("--count", type=int, default=64, help="tokens of each")
    parser.add_argument("--minutes", type=float, default=1e9, help="nothing is begun after")
    parser.add_argument("--tokens", action="store_true", help="compare tokens alone; take no times")
    parser.add_argument("--beside", default="nothing", help="what else the GPUs did meanwhile, for readers")
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    end = perf_counter() + 60 * given.minutes
    device = torch.device(given.device)
    about = {"device": device_name(device), "versions": versions(), "sizes": list(SIZES)}
    units: dict[str, Any] = {}
    if given.out.is_file():
        before = results.read_json(given.out)
        units = before["units"] if {k: before.get(k) for k in about} == about else {}
    if given.tokens:
        _tokens(given, end, about, units)
        return
    for name, model, method, dtype, count in _units(given):
        before = units.get(name, {})
        missing = [size for size in given.sizes if method is not None and not _asked(before, size, count)]
        if not (missing if method else not before) or perf_counter() > end:
            continue
        print(name, flush=True)
        loaded = models.load(model, given.device, dtype)
        if method is None:
            prompts = _prompts(loaded, given.decoded)
            reuse = Trial(model, mode="block").method(system=bool(loaded.layout.system))
            unit: Any = {"decoding": engine_speed.decoded(loaded, prompts, reuse, SIZES, given.count, print)}
        else:
            trial = Trial(model, device=given.device, dtype=dtype, **METHODS[method])
            found = engine_speed.answered(loaded, trial, _prompts(loaded, count), missing, print)
            unit = engine_speed.beside(before, found, missing)
        units[name] = {"model": model, "method": method or "block", "dtype": dtype, "beside": given.beside, **unit}
        _write(given.out, about, units)
        del loaded


def _asked(unit: dict[str, Any], size: int, count: int) -> bool:
    """Whether so many questions were answered so many at a time."""
    return any(row["batch"] == size and row["questions"] >= count for row in unit.get("speed", []))


def _tokens(given: argparse.Namespace, end: float, about: dict[str, Any], units: dict[str, Any]) -> None:
    """Compare tokens alone, model by model, and write after every portion until the minutes are over."""
    for name, model, method, dtype, count in _units(given):
        name, there = f"{name}, tokens", units.get(f"{name}, tokens", {"tokens": []})["tokens"]
        if method is None or (there and there[0]["questions"] >= count) or perf_counter() > end:
            continue
        loaded = models.load(model, given.device, dtype)
        exact = None if dtype == "float32" else models.load(model, given.device, "float32")
        trial = Trial(model, device=given.device, dtype=dtype, **METHODS[method])
        for rows in engine_tokens.compared(loaded, trial, _prompts(loaded, count), SIZES, there, exact=exact):
            about_unit = {"model": model, "method": method, "dtype": dtype, "beside": given.beside}
            units[name] = about_unit | {"tokens": rows}
            _write(given.out, about, units)
            counts = [" ".join(f"{k} {v}" for k, v in row.items() if isinstance(v, int)) for row in rows]
            print(f"{name}: {'; '.join(counts)}", flush=True)
            if perf_counter() > end:
                return
        del loaded, exact


def _write(path: Path, about: dict[str, Any], units: dict[str, Any]) -> None:
    results.write_json(path, {"command": "python data/benchmarks/engines.py", **about, "units": units})


def _units(given: argparse.Namespace) -> list[tuple[str, str, str | None, str, int]]:
    """List (name, model, method or None for decoding alone, dtype, questions), what matters most first."""
    dtype, *others = given.dtypes
    both = [(m, n) for m, n in ((given.model, given.lab), (given.real_model, given.real)) if n]
    units: list[tuple[str, str, str | None, str, int]] = []
    for model, count in both:
        units.append((f"{model} decoding {dtype}", model, None, dtype, count))
        units += [(f"{model} {method} {dtype}", model, method, dtype, count) for method in given.methods[:1]]
    for model, count in both:
        units += [(f"{model} {m} {dtype}", model, m, dtype, min(count, FEW)) for m in given.methods[1:]]
    for other in others:
        units += [(f"{m} {given.methods[0]} {other}", m, given.methods[0], other, min(n, FEW)) for m, n in both]
    return units


def _prompts(loaded: models.Loaded, count: int) -> list[Any]:
    return list(loaded.layout.prompts(data.load("lab", count, 0), loaded.tokenizer))


if __name__ == "__main__":
    main()
