"""Convert records of trials to rows of result tables, as `workbench trial` and `workbench sweep` write with `--out`.

<out>/trials/<key>.json                   the trial, its record with request reports; what a resumed sweep looks for
      answers|timings|counts/trial@<key>  its rows (`workbench.results`)
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

from workbench.core.utils.files import write_text
from workbench.experiments.trials.record import Record
from workbench.metrics.quality import Quality
from workbench.results import METHOD, Writer, this_run
from workbench.results.reader import table_of
from workbench.results.schema import Answer, Origin

EXPERIMENT = "trial"
FOLDER = "trials"
COSTS = (
    *("prompt_tokens", "rows_computed", "rows_reused", "rows_charged", "charged_share"),
    *("flops", "flops_linear", "flops_attention"),
    *("bytes", "bytes_loaded", "hit_rate", "parameters", "seconds", "preprocess_ms"),
)
SHARED = ("model", "data", "passages", "seed", "device", "dtype")  # fields of a trial with their own columns
FIRST_TOKEN = "first token"  # workload of a trial's timings
SCORES = tuple(one.name for one in fields(Quality) if f"{one.name}_low" in {other.name for other in fields(Quality)})
COMPARED = frozenset(("kl", "kl_first", "agree", "agree_first", "nll", "nll_extra"))  # their n is `compared`
SPARSITY = {name: name for name in ("density", "union", "tiles", "mass", "recall", "error", "lowest")}
SPARSITY |= {"kl": "prefill_kl", "agree": "prefill_agree", "answer": "first", "seconds": "prefill_seconds"}
BY_HEAD = ("density", "mass", "recall", "error")
SHARED_COLUMNS = frozenset(field.name for field in fields(Origin))
OF_ANSWER = frozenset(field.name for field in fields(Answer))


def origin(record: Record, method: str = "") -> dict[str, Any]:
    """Return the columns that all rows of a trial share; `method` is the published name that it was requested by."""
    trial = record.trial
    known = {name: trial.get(name) for name in (*SHARED, *METHOD) if trial.get(name) is not None}
    rest = {name: value for name, value in trial.items() if name not in known and value is not None}
    rest |= {"note": record.note} if record.note else {}
    about = {"method": method or record.label, "device": record.device, "versions": record.versions}
    return {"experiment": EXPERIMENT, **known, **about, "setting": rest}


def counts(record: Record) -> list[dict[str, Any]]:
    """Return one row per measured number: scores by kind of question, costs of a request, sparsity."""
    of_kinds = record.rows() if len(record.by_kind) > 1 else record.rows()[:1]
    rows = [row for scores in of_kinds for row in _of_scores(scores)]
    rows += _of_scores({**(record.answered or {}), "kind": "all"}, "answered_")
    rows += [{"measure": name, "value": value} for name in COSTS if (value := getattr(record, name)) is not None]
    rows += [{"measure": f"misses {why}", "value": float(count)} for why, count in (record.misses or {}).items()]
    if judged := record.faithfulness:
        rows += [{"measure": "faithful", "value": judged["mean"], **{k: judged[k] for k in ("low", "high", "n")}}]
    rows += sparsity(record.sparsity or {})
    return [{"kind": "all", **row} for row in rows]


def timings(record: Record) -> list[dict[str, Any]]:
    """Return the row with the time to first token."""
    times = {name: None if value is None else value * 1e3 for name, value in vars(record.ttft_s).items() if name != "n"}
    return [
        {"workload": FIRST_TOKEN, "candidate": record.label, "ms": times.pop("p50"), "runs": record.ttft_s.n, **times}
    ]


def answers(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one row per question, from what `Trial.run_each` returns; fields without a column are left out."""
    named = ({"question": str(row["id"]), **row} for row in rows)
    return [{key: value for key, value in row.items() if key in OF_ANSWER and value is not None} for row in named]


def write(
    out: Path,
    key: str,
    record: Record | Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    method: str = "",
    **named: Any,
) -> None:
    """Write a finished trial into the results folder `out`; `rows` has one row per question.

    `named` columns replace the trial's own.
    """
    record = record if isinstance(record, Record) else Record.from_json(dict(record))
    with Writer(out, f"{EXPERIMENT}@{key}", **(this_run() | origin(record, method) | named)) as tables:
        tables.answers(answers(rows))
        tables.counts(counts(record))
        tables.timings(timings(record))
    folder = out / FOLDER
    folder.mkdir(exist_ok=True)
    text = json.dumps({"method": method, "record": record.to_json()}, allow_nan=False)
    write_text(folder / f"{key}.json", text)
    (folder / f"{key}.failed.json").unlink(missing_ok=True)


def answers_of(out: Path, key: str) -> list[dict[str, Any]]:
    """Return what `Trial.run_each` returned for each question of a trial in `out`: {id, kind, answer, em, …}."""
    path = out / "answers" / f"{EXPERIMENT}@{key}.parquet"
    if not path.is_file():
        return []
    table = table_of(path)
    own = table.drop(columns=[name for name in table if name in SHARED_COLUMNS]).rename(columns={"question": "id"})
    return cast(list[dict[str, Any]], own.to_dict("records"))


def _of_scores(scores: Mapping[str, Any], before: str = "") -> list[dict[str, Any]]:
    """Return one row per measured score, with its interval and n."""
    rows = []
    for name in SCORES:
        if (value := scores.get(name)) is not None:
            n = scores.get("compared") if name in COMPARED else scores.get("n")
            ends = {end: scores.get(f"{name}_{end}") for end in ("low", "high")}
            measure = before + name
            rows.append({"kind": scores["kind"] or "", "measure": measure, "value": value, "n": n, **ends})
    return rows


def sparsity(kept: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return one row per measure of what a sparse method keeps, then the same by layer and head.

    `first`: whether the answer's first token stays the same.
    """
    ends = {"first": {"low": kept.get("low"), "high": kept.get("high")}}
    means = [
        {"measure": name, "value": float(kept[key]), "n": kept["prompts"], **ends.get(name, {})}
        for key, name in SPARSITY.items()
        if key in kept
    ]
    by_head = [
        {"kind": f"layer {head['layer']} head {head['head']}", "measure": name, "value": head[name]}
        for head in kept.get("heads", ())
        for name in BY_HEAD
    ]
    return means + [{**row, "n": kept["prompts"]} for row in by_head]
