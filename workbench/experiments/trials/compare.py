"""Methods side by side on the same questions: scores, paired differences, McNemar's test and bits explained.

Rows are those of `Trial.run_each`, of the answers of a sweep (`by("trial", rows)`) or of `fidelity.measure`
(`by("method", rows)`): one a question, told apart by `id`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from workbench.core.errors import BadInput
from workbench.metrics import fidelity
from workbench.metrics.answers import Records, bootstrap
from workbench.metrics.paired import Explained, bits_explained, difference, mcnemar

SCORES = ("em", "f1", "contains", "nll", "kl", "kl_first", "agree", "agree_first")
RIGHT = ("em", "contains", "agree_first")  # of these scores, 0 or 1 a question, McNemar's test
LOSSES = ("nll", "kl")  # of which a method explains a share of what reuse loses
CHARGED = ("rows", "flops", "bytes", "seconds")  # what a request costs, passes of the selector included


def by(name: str, rows: Iterable[Mapping[str, Any]]) -> dict[str, Records]:
    """Group rows by their field `name`, in the order in which its values first come."""
    groups: dict[str, Records] = {}
    for row in rows:
        groups.setdefault(row[name], []).append(dict(row))
    return groups


def paired(one: Records, other: Records, score: str, seed: int = 0) -> dict[str, Any]:
    """Compare two methods by one score: {n, one, other, difference, low, high}; of `RIGHT` only_one, only_other, p too.

    The interval is a paired bootstrap's, `p` McNemar's. Questions without the score are left out; where that leaves
    none, n is 0 and all else None. Raises BadInput where the methods have not answered the same questions.
    """
    first, second = _matched([one, other], score)
    names = ["one", "other", "difference", "low", "high"]
    names += ["only_one", "only_other", "p"] if score in RIGHT else []
    if not len(first):
        return {"score": score, "n": 0, **dict.fromkeys(names)}
    gap = difference(first, second, seed)
    values = [float(first.mean()), float(second.mean()), gap.mean, gap.low, gap.high]
    tested = asdict(mcnemar(first, second)).values() if score in RIGHT else []
    return {"score": score, "n": gap.n, **dict(zip(names, [*values, *tested], strict=True))}


def explained(method: Records, reuse: Records, loss: str = "nll", seed: int = 0) -> Explained | None:
    """Return the share of what plain `reuse` loses to full attention that a method wins back; `loss`: "nll" or "kl".

    None where no question has that loss. Raises BadInput for another loss and for other questions.
    """
    if loss not in LOSSES:
        raise BadInput(f"loss {loss!r}: bits are explained of {' or '.join(LOSSES)}")
    if loss == "kl":
        full = [{**row, "kl": 0.0} for row in reuse]
    else:
        full = [{**row, "nll": row.get("nll_full")} for row in reuse]
    ours, plain, least = _matched([method, reuse, full], loss)
    return bits_explained(ours, plain, least, seed) if len(ours) else None


def table(methods: Mapping[str, Records], reuse: str | None = None, seed: int = 0) -> Records:
    """Return one row a method, for tables and files: its scores and costs with bootstrap 95% intervals.

    A row has {method, n}, for every score and cost that was measured its mean and {name}_low, {name}_high, fidelity as
    `metrics.fidelity.summary` names it and, of the questions that full attention answers exactly, answered_{name}.
    With the name of plain `reuse` also `nll_explained` and `kl_explained` with their ends, and {score}_more_than_reuse
    with ends (and em_p, agree_first_p). What could not be measured is None. Raises BadInput for a name that is none.
    """
    if reuse is not None and reuse not in methods:
        raise BadInput(f"no method is named {reuse!r}: there are {', '.join(methods)}")
    return [_row(name, rows, methods[reuse] if reuse is not None else None, seed) for name, rows in methods.items()]


def _explained(of_trial: Mapping[str, Records], row: Mapping[str, Any], reuse: str, seed: int) -> dict[str, Any]:
    method, plain = ([r for r in of_trial[name] if row["kind"] in ("all", r["kind"])] for name in (row["trial"], reuse))
    columns: dict[str, Any] = {}
    for loss in LOSSES:
        share = explained(method, plain, loss, seed)
        columns |= _ends(f"{loss}_explained", (share.share, share.low, share.high) if share else (None, None, None))
    return columns


def _row(name: str, rows: Records, reuse: Records | None, seed: int) -> dict[str, Any]:
    record: dict[str, Any] = {"method": name, "n": len(rows)}
    for field in ("em", "f1", "contains", "full_em", "full_f1", "full_contains", "kl_gold", *CHARGED):
        values = [row[field] for row in rows if row.get(field) is not None]
        record |= _ends(field, (float(np.mean(values)), *bootstrap(values, seed)) if values else (None, None, None))
    if all("kl" in row for row in rows):
        answered = fidelity.of_answered(rows, seed) or {}
        record |= fidelity.summary(rows, seed) | {f"answered_{key}": value for key, value in answered.items()}
    if reuse is None:
        return record
    for loss in LOSSES:
        share = explained(rows, reuse, loss, seed)
        record |= _ends(f"{loss}_explained", (share.share, share.low, share.high) if share else (None, None, None))
    for score in SCORES:
        gap = paired(rows, reuse, score, seed)
        record |= _ends(f"{score}_more_than_reuse", (gap["difference"], gap["low"], gap["high"]))
        record |= {f"{score}_p": gap["p"]} if score in RIGHT else {}
    return record


def _ends(name: str, values: Sequence[float | None]) -> dict[str, float | None]:
    return dict(zip((name, f"{name}_low", f"{name}_high"), values, strict=True))


def _matched(methods: Sequence[Records], score: str) -> list[np.ndarray]:
    """Return a column of the score a method [n], of the questions that every method has it of, in one order."""
    columns = [{row["id"]: row.get(score) for row in rows} for rows in methods]
    if any(set(column) != set(columns[0]) for column in columns) or not columns[0]:
        raise BadInput(f"{' and '.join(str(len(rows)) for rows in methods)} rows: not of the same questions")
    scored = [i for i in columns[0] if all(_is_number(column[i]) for column in columns)]
    return [np.array([column[i] for i in scored], dtype=float) for column in columns]


def _is_number(value: Any) -> bool:
    return value is not None and value == value  # nan: of a table
