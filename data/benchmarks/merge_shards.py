"""What many processes have measured by `fidelity.measure_into`, gathered into a table of methods and one of questions.

    groups, lacking = complete(gather(folder))
    methods(groups, configs), questions(groups)

A file of rows is named MODEL-DATA-GROUP-PART.jsonl; MODEL-DATA-GROUP-PART.head beside it is JSON and says how they were
measured, and .kept has a line of JSON a sparse method with what it keeps.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pandas as pd

from workbench.core.errors import BadInput
from workbench.experiments import compare, fidelity
from workbench.methods.config import MethodConfig
from workbench.metrics.answers import Records

REUSE = "after_system"  # name of Full Reuse among the methods
ALIKE = ("n", "seed", "passages", "max_new_tokens")  # fields of a head that all parts of a group share
HEAD = (*ALIKE, "corpus", "device", "versions", "note")
SCORES = ("nll", "nll_full", "kl", "kl_first", "kl_gold", "agree", "agree_first")  # of every question
ANSWERS = ("full_em", "full_f1")  # of full attention's own answer
ENOUGH = 0.9  # least share of the questions that were asked: the last parts of a measurement may have been cut off
CHOICES = tuple(field.name for field in fields(MethodConfig) if field.name != "prepared")
LEFT_OUT = ("bytes", "seconds", "em", "f1")  # of the table: not measured, or several processes shared the device


@dataclass(frozen=True)
class Group:
    """Methods that were measured together, all of them on the same questions.

    head      how they were measured: `HEAD`
    methods   name → rows of `fidelity.measure`, of the questions that every method has
    kept      name → what a sparse method keeps, of `metrics.sparsity`
    """

    model: str
    data: str
    name: str
    head: Mapping[str, Any]
    methods: Mapping[str, Records]
    kept: Mapping[str, Mapping[str, Any]]

    @property
    def n(self) -> int:
        """Questions that every method has."""
        return len(next(iter(self.methods.values())))

    @property
    def questions(self) -> tuple[str, str, int]:
        """What tells its questions apart from others: model, data and passages of a prompt."""
        return self.model, self.data, self.head["passages"]


def gather(folder: Path) -> list[Group]:
    """Read a folder's groups, in the order of their names.

    Raises BadInput for a folder without rows, a file without its head, and parts that were not measured alike.
    """
    parts: dict[tuple[str, str, str], list[Path]] = {}
    for path in sorted(folder.glob("*-*-*-*.jsonl")):
        if not (rows := fidelity.read(path)):
            continue
        *_, group, _ = path.stem.rsplit("-", 2)
        parts.setdefault((rows[0]["model"], rows[0]["data"], group), []).append(path)
    if not parts:
        raise BadInput(f"{folder} holds no rows: MODEL-DATA-GROUP-PART.jsonl are needed")
    return [_group(*named, paths) for named, paths in parts.items()]


def complete(groups: Iterable[Group]) -> tuple[list[Group], list[str]]:
    """Part the groups whose methods have the questions that were asked, `ENOUGH` of them at least, from the others.

    A line says how many each has that lacks some.
    """
    whole, lines = [], []
    for group in groups:
        if group.n >= ENOUGH * group.head["n"]:
            whole.append(group)
        if group.n < group.head["n"]:
            lines.append(f"{group.model} on {group.data}, {group.name}: {group.n} of {group.head['n']} questions")
    return whole, lines


def methods(groups: Sequence[Group], configs: Mapping[str, MethodConfig], seed: int = 0) -> pd.DataFrame:
    """Return a row a model, data set, method and kind of question ("all" first), shaped as the table of a sweep.

    Columns are the choices of a method (`trial`, mode, prepare, select, ratio, …), how it was measured, what
    `compare.table` says of its scores beside Full Reuse on the same questions, with 95% intervals, and what a sparse
    method keeps. A method that two groups have on the same questions is taken from the first. Raises BadInput for a
    method that `configs` does not name.
    """
    unknown = [name for group in groups for name in group.methods if name not in configs]
    if unknown:
        raise BadInput(f"method {unknown[0]!r} is unknown: there are {', '.join(configs)}")
    reuse = {group.questions: group.methods[REUSE] for group in reversed(groups) if REUSE in group.methods}
    seen: set[tuple[Any, ...]] = set()
    rows: Records = []
    for group in groups:
        names = [name for name in group.methods if (*group.questions, name) not in seen]
        seen |= {(*group.questions, name) for name in names}
        for kind in _kinds(group):
            rows += _table(group, names, reuse.get(group.questions, []), kind, configs, seed)
    return pd.DataFrame(rows)


def questions(groups: Sequence[Group]) -> pd.DataFrame:
    """Return the scores of every question and method, float32, without any text.

    {model, data, passages, trial, id, kind, `SCORES`}, and of full attention its answers' own scores.
    """
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for group in groups:
        model, data, passages = group.questions
        for name, of_method in group.methods.items():
            for row in of_method:
                about = {"model": model, "data": data, "passages": passages, "trial": name}
                scores = {score: row[score] for score in (*SCORES, *(ANSWERS if name == "full" else ()))}
                rows.setdefault(
                    (*group.questions, name, row["id"]), about | {"id": row["id"], "kind": row["kind"]} | scores
                )
    table = pd.DataFrame(list(rows.values()))
    types = dict.fromkeys(("model", "data", "trial", "id", "kind"), "category")
    types |= dict.fromkeys((name for name in (*SCORES, *ANSWERS) if name in table), "float32")
    return table.astype(types | {"passages": "int16"})


def _group(model: str, data: str, name: str, paths: Sequence[Path]) -> Group:
    heads = [_head(path.with_suffix(".head")) for path in paths]
    for field in ALIKE:
        if len(values := sorted({head[field] for head in heads})) > 1:
            raise BadInput(f"{paths[0].stem} and its parts differ in {field}: {' and '.join(map(str, values))}")
    every = [row for path in paths for row in fidelity.read(path)]
    by_method = compare.by("method", every)
    shared = set.intersection(*({row["id"] for row in rows} for rows in by_method.values()))
    taken = {
        method: list({row["id"]: row for row in rows if row["id"] in shared}.values())
        for method, rows in by_method.items()
    }
    kept = [row for path in paths for row in fidelity.read(path.with_suffix(".kept"))]
    measured = {row["method"]: row for row in kept}
    return Group(model, data, name, heads[0], taken, measured)


def _head(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise BadInput(f"{path} is missing: it says how the rows beside it were measured")
    head = json.loads(path.read_text(encoding="utf-8"))
    if missing := [field for field in HEAD if field not in head]:
        raise BadInput(f"{path} does not say {missing[0]}")
    return head


def _kinds(group: Group) -> list[str]:
    kinds = sorted({row["kind"] for row in next(iter(group.methods.values()))})
    return ["all"] if len(kinds) == 1 else ["all", *kinds]


def _table(
    group: Group,
    names: Sequence[str],
    reuse: Records,
    kind: str,
    configs: Mapping[str, MethodConfig],
    seed: int,
) -> Records:
    """Return the rows of some methods of a group on one kind of question."""
    asked = {row["id"] for row in next(iter(group.methods.values())) if kind in ("all", row["kind"])}
    listed = {name: [row for row in group.methods[name] if row["id"] in asked] for name in names}
    plain = [row for row in reuse if row["id"] in asked]
    beside = len(plain) == len(asked)
    scored = compare.table(listed | ({REUSE: plain} if beside else {}), REUSE if beside else None, seed)
    about = {"model": group.model, "note": group.head["note"], "data": group.data, "group": group.name}
    about |= {"asked": group.head["n"]} | {field: group.head[field] for field in HEAD if field not in ("n", "note")}
    about["versions"] = json.dumps(group.head["versions"])
    return [
        about | _choices(configs[row["method"]]) | {"kind": kind} | _renamed(row) | _kept(group, row["method"])
        for row in scored
        if row["method"] in listed
    ]


def _choices(config: MethodConfig) -> dict[str, Any]:
    return {name: getattr(config, name) for name in CHOICES}


def _renamed(row: Mapping[str, Any]) -> dict[str, Any]:
    """Name the method as a sweep does (`trial`), and leave out what this table does not hold."""
    out = {f"{name}{end}" for name in LEFT_OUT for end in ("", "_low", "_high")}
    return {"trial": row["method"]} | {
        name: value
        for name, value in row.items()
        if name not in out | {"method", "em_p"} and not name.startswith(("em_more", "f1_more"))
    }


def _kept(group: Group, method: str) -> dict[str, Any]:
    """Return what a sparse method keeps, with `kept_` before every name; nothing of other methods."""
    measured = group.kept.get(method, {})
    return {f"kept_{name}": value for name, value in measured.items() if name not in ("data", "model", "method")}
