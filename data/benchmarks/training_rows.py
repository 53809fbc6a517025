"""The curve of block fine-tuning without labels, as rows of result tables.

    python data/benchmarks/training_rows.py --name smollm2-block --curve runs/smollm2-block/curve.json

reads what `workbench tune --teacher self` leaves: training losses by step, and both modes on held-out questions beside
full attention before training. A name that ends in "naive" is a run without position re-encoding.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from script import options

from workbench import results

MODES = ("full", "block")
SCORES = {"kl": "kl", "agree": "agree", "nll_gap": "nll_extra"}  # of the curve → of the tables
Row = dict[str, Any]


def training(row: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the counts of a training step."""
    yield from ({"measure": name, "value": row[name]} for name in ("loss", "lr"))
    for mode in MODES:
        yield {"measure": "train_kl", "kind": mode, "value": row[f"kl_{mode}"]}
        yield {"measure": "train_agree", "kind": mode, "value": row[mode]}


def held_out(row: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the counts of an evaluation."""
    yield {"measure": "nll", "kind": "full, before", "value": row["nll"], "n": row["n"]}
    for mode in MODES:
        for name, measure in SCORES.items():
            ends = {end: row[mode].get(f"{name}_{end}") for end in ("low", "high")}
            yield {"measure": measure, "kind": mode, "value": row[mode][name], "n": row["n"], **ends}


def main() -> None:
    """Read a curve and write its rows."""
    args = options(__doc__, name="smollm2-block", curve=Path("runs/smollm2-block/curve.json"), model="smollm2")
    curve = json.loads(args.curve.read_text(encoding="utf-8"))
    positions = "naive" if args.name.endswith("naive") else "re-encoded"
    about = {"model": args.model, "mode": "block", "positions": positions, "method": f"block fine-tuning, {positions}"}
    with results.Writer(args.out, f"training@{args.name}", **about, **results.this_run()) as out:
        for part, rows_of in (("train", training), ("scores", held_out)):
            for row in curve[part]:
                out.counts({**one, "at": float(row["step"])} for one in rows_of(row))
        out.counts([{"measure": "seconds", "value": curve["seconds"]}])


if __name__ == "__main__":
    main()
