"""What preparation gives to reuse, of every model that data/benchmarks/preparations.py has measured."""

from collections.abc import Mapping, Sequence
from typing import Any

from workbench import results as tables
from workbench.metrics.answers import Records
from workbench.metrics.seeds import gains_over_seeds

PLAIN = "after_system"  # what gains are differences to
Kept = Mapping[str, Any]


def kept() -> list[Kept]:
    """Read the interventions that there are, a model each; training seeds of one size are joined."""
    counts = tables.read().counts("trial")
    gained = counts[counts.measure == "em_gain"]
    models = []
    for (model, seed), own in gained.groupby(["model", gained.training_seed.fillna(-1).astype(int)], sort=False):
        rows = [
            {
                "data": data,
                "prepare": prepare,
                "name": of.method.iloc[0],
                "found": None,
                "of": list(map(_line, of.itertuples())),
            }
            for (data, prepare), of in own.groupby(["data", "prepare"], sort=False)
        ]
        about = {"seed": own.seed.iloc[0], "passages": own.passages.iloc[0], "samples": own.n.max()}
        models.append({"model": str(model) if seed < 0 else f"{model}-{seed}", **about, "rows": rows})
    sizes = dict.fromkeys(size_of(one) for one in models)
    groups = [[one for one in models if size_of(one) == size] for size in sizes]
    return [each for group in groups for each in ([joined_seeds(group)] if len(group) > 1 else group)]


def _line(row: Any) -> dict[str, Any]:
    ends = {"gain": row.value, "gain_low": row.low, "gain_high": row.high}
    return {"kind": row.kind, "score": "em", "n": int(row.n), "mean": row.value, **ends}


def size_of(one: Kept) -> str:
    """Return a model's name without its training seed: `lab-hard-small-2` → lab-hard-small."""
    name, _, seed = str(one["model"]).rpartition("-")
    return name if name and seed.isdecimal() else str(one["model"])


def joined_seeds(models: Sequence[Kept]) -> Kept:
    """Return models that differ by their training seed as one, every gain over the seeds that have it.

    Of models that were measured on other questions than the first nothing is taken, nor of a row that one lacks.
    """
    first = models[0]
    alike = [one for one in models if all(one[key] == first[key] for key in ("samples", "seed", "passages"))]
    rows: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in (row for one in alike for row in one["rows"]):
        rows.setdefault((row["data"], row["prepare"]), []).append(row)
    rows = {key: of for key, of in rows.items() if len(of) == len(alike)}
    merged = [{**of[0], "of": _over_seeds([line for row in of for line in row["of"]])} for of in rows.values()]
    return {**first, "model": size_of(first), "rows": merged, "training_seeds": len(alike)}


def _over_seeds(lines: Sequence[Mapping[str, Any]]) -> Records:
    """Join lines {kind, score, n, mean, gain, …} of several models: a line a kind and score."""
    by_kind: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for line in lines:
        by_kind.setdefault((line["kind"], line["score"]), []).append(line)
    merged = []
    for of in by_kind.values():
        gain = gains_over_seeds([(line["gain"], line["gain_low"], line["gain_high"]) for line in of], of[0]["n"])
        numbers = {"gain": gain.mean, "gain_low": gain.low, "gain_high": gain.high}
        merged.append({**of[0], **numbers, "mean": sum(line["mean"] for line in of) / len(of)})
    return merged


def gains(one: Kept, score: str = "em") -> Records:
    """Return rows {data, prepare, name, kind, found, gain, gain_low, gain_high, n}: differences to `after_system`."""
    return [
        {**{key: row[key] for key in ("data", "prepare", "name", "found")}, **line}
        for row in one["rows"]
        for line in row["of"]
        if line["score"] == score and row["prepare"] != PLAIN
    ]
