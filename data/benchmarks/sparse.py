"""Sparse methods on the lab model: what each keeps and loses at several thresholds, and how well the model answers.

    for i in 0 1; do CUDA_VISIBLE_DEVICES=$i python data/benchmarks/sparse.py --samples 500 --needles 500 --size 8 \
        --device cuda --processes 14 --share $i/2 & done; wait; python data/benchmarks/sparse.py --device cuda --collect

made the committed files on two GPUs (so many processes share one well under CUDA's multi-process service only). It
leaves in the results folder --results: answers, and counts by setting, data set, kind of question, layer and head, with
95% intervals. Prompts of 40
passages of the lab corpus, and needle tasks, prefilled in chunks of 512 rows. What runs/sparse holds is not computed
again; `--minutes` begins nothing new after that, and the files are written from what is there; `--part` is one of the
two data sets, `--share` some of the units of work, `--collect` only writes the files. `--only` measures some methods
again: their rows take the place of those that are there. A gate that was
distilled on prompts that are scored is refused. On a CPU, a small preliminary set:

    python data/benchmarks/sparse.py --samples 6 --measured 2 --needles 5 --steps 2 --size 1

Rows of `quoka` with `group=scores` are of the rule that earlier versions had (`workbench.methods.sparse.quoka`).
"""

import argparse
import json
import time
from dataclasses import dataclass
from functools import lru_cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet
from sparse_settings import CURVES, TABLE, Setting, fields

from workbench import data, models, results
from workbench.core.errors import BadInput
from workbench.core.tiling import tile_grid
from workbench.core.utils.files import write_atomically
from workbench.core.utils.runner import Workers
from workbench.experiments.trials.record import device_name
from workbench.methods import seer_gate, sparse
from workbench.metrics import answers
from workbench.metrics.tiles.side_by_side import compare_many
from workbench.metrics.tiles.sparsity import MEASURES

HERE = Path(__file__).parent
MODEL, SEED, PASSAGES, CHUNK = "lab-full", 40_000, 40, 512  # a seed of worlds that neither trained nor chose the model
TOGETHER = 64  # pairs of a prompt and a setting that a GPU is given at a time


@dataclass(frozen=True)
class WorkUnit:
    """Questions `start` to `start + count` of a data set under every setting; of the first `measured`, what is kept."""

    data: str
    start: int
    count: int
    measured: int
    heads: int
    settings: tuple[Setting, ...]
    device: str
    processes: int

    @property
    def name(self) -> str:
        measured, heads = (min(self.count, max(0, most - self.start)) for most in (self.measured, self.heads))
        about = [SEED, PASSAGES, CHUNK, measured, heads, [setting.spec for setting in self.settings]]
        return f"{self.data}-{self.start:05}-{self.count}-{sha256(json.dumps(about).encode()).hexdigest()[:8]}"


def settings(steps: int | None) -> list[Setting]:
    """Return all settings, or `steps` of each method, evenly out of its list; the learned gate where it is shipped."""
    chosen = []
    for name, (spec, values) in CURVES.items():
        if name == "seer_attention" and not (models.folder(MODEL) / seer_gate.FILE).exists():
            continue
        some = values if steps is None or not values else [values[i] for i in _evenly(len(values), steps)]
        chosen += [Setting(name, spec.format(value), value, "curve") for value in some]
        chosen += [] if values else [Setting(name, spec, None, "curve")]
    table = [Setting("bfla", spec, None, "table") for spec in TABLE]
    return chosen + (table if steps is None else table[1:8:3])


def _evenly(count: int, steps: int) -> list[int]:
    return sorted({round(i) for i in np.linspace(0, count - 1, steps + 2)[1:-1]})


def method_names(text: str) -> list[str]:
    """Read names of methods, separated by commas."""
    names = [name.strip() for name in text.split(",")]
    if unknown := [name for name in names if name not in CURVES]:
        raise argparse.ArgumentTypeError(f"there is no method {unknown[0]!r}: allowed are {', '.join(CURVES)}")
    return names


def check_gate(args: argparse.Namespace) -> None:
    """Refuse a gate that was distilled on what is scored. The prompts themselves are compared unit by unit."""
    if any(setting.method == "seer_attention" for setting in units(args)[0].settings):
        for name, count in (("lab", args.samples), ("needles", args.needles)):
            seer_gate.check_unseen(models.folder(MODEL) / seer_gate.FILE, name, SEED, range(count))


def units(args: argparse.Namespace) -> list[WorkUnit]:
    """Return the work, both data sets side by side, so that the results at any time are balanced."""
    listed = tuple(each for each in settings(args.steps) if not args.only or each.method in args.only)
    work = []
    for name, total, measured in (("lab", args.samples, args.measured), ("needles", args.needles, 0)):
        for start in range(0, total, args.size):
            count = min(args.size, total - start)
            work.append(WorkUnit(name, start, count, measured, args.heads, listed, args.device, args.processes))
    return sorted(work, key=lambda unit: unit.start)


def share_of(text: str) -> tuple[int, int]:
    """Read `i/n`, the i-th of n shares, from 0."""
    i, n = (int(number) for number in text.split("/"))
    if not 0 <= i < n:
        raise ValueError
    return i, n


@lru_cache(maxsize=1)
def loaded(device: str) -> models.Loaded:
    if device == "cpu":
        tile_grid.ELEMENTS = 1 << 21  # parts that stay in the cache: half the time
    return models.load(MODEL, device)


@lru_cache(maxsize=2)
def questions(name: str, count: int) -> list[data.Sample]:
    return data.load(name, count, SEED, PASSAGES)


def rows_to(path: Path, rows: list[dict[str, Any]], single: tuple[str, ...] = ()) -> None:
    """Write rows, whole or not at all; columns `single` in fp32. A row may lack columns that others have."""
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: pa.array([row.get(name) for row in rows]) for name in names}
    for name, column in columns.items():
        if name in single or pa.types.is_null(column.type):
            columns[name] = column.cast(pa.float32() if name in single else pa.float64())
    write_atomically(path, partial(parquet.write_table, pa.table(columns), compression="zstd"))


def run(unit: WorkUnit, out: Path, end: float) -> str:
    """Write the two tables of a unit, unless it is too late for it (a moment of the wall clock, s)."""
    if time.time() >= end:
        return f"{unit.name} left for the next run"
    lm = loaded(unit.device)
    methods = {each.spec: sparse.named(each.spec).ready(lm.model) for each in unit.settings}
    samples = questions(unit.data, unit.start + unit.count)[unit.start :]
    prompts = lm.layout.prompts(samples, lm.tokenizer)
    if any(each.method == "seer_attention" for each in unit.settings):
        scored, tokens = range(unit.start, unit.start + unit.count), (prompt.tokens for prompt in prompts)
        seer_gate.check_unseen(models.folder(MODEL) / seer_gate.FILE, unit.data, SEED, scored, tokens)
    measured = max(0, min(unit.count, unit.measured - unit.start))
    together = TOGETHER if lm.model.device.type == "cuda" else 8
    comparisons = [
        *compare_many(lm, prompts[:measured], methods, CHUNK, 24, True, together),
        *compare_many(lm, prompts[measured:], methods, CHUNK, 24, False, together),
    ]
    rows, heads = [], []
    for at, (sample, prompt, by_spec) in enumerate(zip(samples, prompts, comparisons, strict=True)):
        about = {"data": unit.data, "id": sample.id, "kind": sample.kind, "tokens": len(prompt)}
        about |= {"measured": at < measured, "device": device_name(lm.model.device), "processes": unit.processes}
        for spec, compared in by_spec.items():
            score = {"em": answers.exact_match(compared.text, sample.answers)}
            score["f1"] = answers.f1(compared.text, sample.answers)
            rows.append(about | {"spec": spec} | score | compared.measures())
            if unit.start + at < unit.heads:
                heads += [{"id": sample.id, "spec": spec} | vars(head) for head in compared.heads]
    rows_to(out / f"{unit.name}.heads.parquet", heads, (*MEASURES, "lowest"))
    rows_to(out / f"{unit.name}.parquet", rows)  # last: the unit is done
    return unit.name


def run_all(args: argparse.Namespace) -> None:
    """Run the units that are not there yet, side by side."""
    args.out.mkdir(parents=True, exist_ok=True)
    share, shares = args.share
    end = time.time() + 60 * args.minutes
    listed = [unit for unit in units(args)[share::shares] if args.part in ("all", unit.data)]
    todo = [unit for unit in listed if not (args.out / f"{unit.name}.parquet").exists()]
    print(f"{len(todo)} of {len(listed)} units to do, {len(todo[0].settings if todo else [])} settings", flush=True)
    with Workers(args.processes) as workers:
        for count, (_, outcome) in enumerate(workers.run(partial(run, out=args.out, end=end), todo), 1):
            print(f"{count} of {len(todo)}: {outcome.value()}", flush=True)


def collect(done: list[WorkUnit], out: Path, only: list[str] | None, folder: Path) -> None:
    """Write answers and counts, from the units that are done; with `only` the rows of these methods are replaced."""
    import pandas as pd
    from sparse_results import by_head, measures, scores

    listed = {each.spec: each for each in done[0].settings}
    tables = [out / f"{unit.name}.parquet" for unit in done]
    every = pd.concat([pd.read_parquet(path) for path in tables], ignore_index=True)
    heads = pd.concat([pd.read_parquet(path.with_suffix(".heads.parquet")) for path in tables], ignore_index=True)
    about = {"model": MODEL, "seed": SEED, "passages": PASSAGES, **results.this_run()}
    kept = before(folder, [spec for spec in listed if listed[spec].method in only]) if only else {}
    with results.Writer(folder, "trial@sparse", **about) as made:
        for table, rows in kept.get("trial@sparse", {}).items():
            made.add(table, rows)
        for (name, spec), group in every.groupby(["data", "spec"], sort=False):
            method = {"data": str(name), "device": group.device.iloc[0], **fields(str(spec), CHUNK)}
            method |= {"setting": {"table": "BFLA 5"}} if listed[str(spec)].group == "table" else {}
            made.answers(
                {**method, "question": row["id"], "kind": row["kind"], "em": row["em"], "f1": row["f1"]}
                for row in group.to_dict("records")
            )
            for kind in ("all", *sorted(group.kind.unique())):
                of_kind = group if kind == "all" else group[group.kind == kind]
                more = measures(group) if kind == "all" else []
                made.counts({**method, "kind": kind, **row} for row in [*scores(of_kind), *more])
    with results.Writer(folder, "trial@sparse-heads", **about, data="lab", device=every.device.iloc[0]) as made:
        for table, rows in kept.get("trial@sparse-heads", {}).items():
            made.add(table, rows)
        made.counts({**fields(spec, CHUNK), **row} for spec, row in by_head(heads))
    print(f"{len(listed)} settings, {every.groupby('data').id.nunique().to_dict()} questions")


def before(folder: Path, again: list[str]) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Return the rows of both parts that stay when the settings `again` are replaced, by part and table."""
    parts = ("trial@sparse", "trial@sparse-heads")
    there = {part: results.Writer(folder, part, resume=True) for part in parts}
    return {
        part: {
            table: [row for row in writer.there(table) if row["sparse"] not in again] for table in ("answers", "counts")
        }
        for part, writer in there.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=500, help="lab questions")
    parser.add_argument("--needles", type=int, default=500, help="needle questions, the five tasks in turn")
    parser.add_argument("--measured", type=int, default=500, help="lab prompts with mass, recall and error measured")
    parser.add_argument("--heads", type=int, default=500, help="prompts that go into the table by layer and head")
    parser.add_argument("--steps", type=int, help="settings of each method; none: all")
    parser.add_argument("--size", type=int, default=8, help="questions of a unit of work")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=600, help="begin no unit after so many")
    parser.add_argument("--part", choices=("all", "lab", "needles"), default="all")
    parser.add_argument("--share", type=share_of, default=(0, 1), metavar="I/N", help="the I-th of N shares, from 0")
    parser.add_argument("--out", type=Path, default=Path("runs/sparse"))
    parser.add_argument("--results", type=Path, default=HERE, help="results folder")
    parser.add_argument("--only", type=method_names, metavar="A,B", help="these methods alone, in place of their rows")
    parser.add_argument("--collect", action="store_true", help="only write the files, from what is there")
    parser.add_argument("--measure", action="store_true", help="only measure, and write no file of results")
    args = parser.parse_args()
    if not args.collect:
        check_gate(args)
        run_all(args)
    done = [unit for unit in units(args) if (args.out / f"{unit.name}.parquet").exists()]
    if args.collect or (args.share == (0, 1) and not args.measure):
        collect(done, args.out, args.only, args.results)


if __name__ == "__main__":
    try:
        main()
    except BadInput as problem:
        raise SystemExit(f"error: {problem}") from None
