"""One row a question of a trial, and what they say together."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from workbench.data import Sample
from workbench.metrics import answers, fidelity
from workbench.metrics.answers import Records
from workbench.metrics.fidelity import Quality

SCORES = {"em": answers.exact_match, "f1": answers.f1, "contains": answers.contains}  # of one answer


def row(sample: Sample, answer: str, compared: dict[str, Any] | None) -> dict[str, Any]:
    """Return the row of a question and its answer; `compared` is what `fidelity.compare` says of it."""
    expected = sample.answers[0] if sample.answers else None
    about = {"id": sample.id, "kind": sample.kind, "answer": answer, "expected": expected}
    return about | scores(answer, sample.answers) | (compared or {})


def scores(answer: str, aliases: Sequence[str], before: str = "") -> dict[str, float | None]:
    """Return every score of one answer, by its name with `before` in front; None without gold answers."""
    return {before + name: of(answer, aliases) if aliases else None for name, of in SCORES.items()}


def quality(rows: Records, samples: Sequence[Sample], seed: int) -> dict[str, Any]:
    """Return the fields of `Quality` of some questions and their rows."""
    scored = answers.score([row["answer"] for row in rows], [sample.answers for sample in samples], seed)
    return asdict(scored) | (fidelity.summary(rows, seed) if "kl" in rows[0] else {})


def by_kind(rows: Records, samples: Sequence[Sample], seed: int) -> dict[str, Quality]:
    """Return the scores of every kind of question."""
    of_kind: dict[str, list[int]] = {}
    for i, row in enumerate(rows):
        of_kind.setdefault(row["kind"], []).append(i)
    return {
        kind: Quality(**quality([rows[i] for i in at], [samples[i] for i in at], seed))
        for kind, at in sorted(of_kind.items())
    }
