"""Every numbered table and figure of the papers: what it claims, what is measured here, and the verdict.

`items()` lists them, `answers(folder)` judges them. A verdict comes from numbers alone (`verdicts`), a link to the cell
that shows them from the notebooks' metadata (`cells`). Numbers of papers stand in `metrics.published_numbers`.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from workbench.core.errors import BadInput
from workbench.experiments.papers import bfla, block_attention, cells, compact_attention, fusion_rag
from workbench.experiments.papers.verdicts import CONFIRMED, LABELS, UNREACHABLE, VERDICTS, Finding, Item, judge
from workbench.metrics.answers import Records

PAPERS = {
    "block1": "Block-Attention, first version",
    "block2": "Block-Attention",
    "fusionrag": "FusionRAG",
    "bfla": "BFLA",
    "compact": "CompactAttention",
}


@dataclass(frozen=True)
class Answer:
    """An item with what is measured here."""

    item: Item
    findings: Sequence[Finding]
    cells: Sequence[cells.Cell]

    @property
    def verdict(self) -> str:
        """Confirmed, contradicted or unreachable: what the deciding findings say."""
        return judge(self.findings)

    @property
    def label(self) -> str:
        """What the deciding findings were measured on, as "lab + shape"."""
        decided = {finding.label for finding in self.findings if finding.decides}
        return " + ".join(label for label in LABELS if label in decided)

    @property
    def in_part(self) -> bool:
        """Whether something is decided, and something else out of reach."""
        return self.verdict != UNREACHABLE and bool(self.item.lacking)

    @property
    def reason(self) -> str:
        """Why nothing, or not everything, could be decided."""
        open_ = [one for one in self.findings if one.decides and one.verdict == UNREACHABLE]
        undecided, smaller = ([one.what for one in open_ if one.reached == reached] for reached in (True, False))
        parts = [f"the interval holds the bar: {'; '.join(undecided)}" if undecided else ""]
        parts += [f"measured of less than the paper prints: {'; '.join(smaller)}" if smaller else ""]
        return ". ".join(part for part in (*parts, self.item.lacking) if part)


def items() -> list[Item]:
    """Return all figures and tables, by paper and number."""
    rooms = (block_attention, fusion_rag, bfla, compact_attention)
    return sorted((item for room in rooms for item in room.items()), key=_place)


def _place(item: Item) -> tuple[int, str, int]:
    _, kind, number = item.key.split("-")
    return list(PAPERS).index(item.paper), kind, int(number)


def answers(folder: str | Path) -> list[Answer]:
    """Judge every item; `folder` holds the notebooks. BadInput for a name in a cell that is no item."""
    named, listed = cells.of_folder(folder), items()
    if unknown := sorted(set(named) - {item.key for item in listed}):
        raise BadInput(f"a cell answers {unknown[0]!r}: there is no such figure or table")
    return [Answer(item, item.find() if item.find else [], named.get(item.key, [])) for item in listed]


def counts(judged: Sequence[Answer]) -> dict[str, int]:
    """Return how many items there are, how many of each verdict, and how many of them hold in part only."""
    found = Counter(answer.verdict for answer in judged)
    in_part = sum(answer.in_part for answer in judged)
    return {"items": len(judged), **{verdict: found[verdict] for verdict in VERDICTS}, "in_part": in_part}


def rows(judged: Sequence[Answer]) -> Records:
    """Return a row a finding, and one for an item without any: for files."""
    listed = []
    for answer in judged:
        item = answer.item
        about = {"key": item.key, "paper": PAPERS[item.paper], "item": item.name, "claim": item.claim}
        about |= {"published": item.published, "verdict": answer.verdict, "reason": answer.reason}
        about |= {"cells": ", ".join("#".join(cell) for cell in answer.cells)}
        blank = dict.fromkeys(("what", "label", "value", "low", "high", "n", "side", "bar", "decides", "finding"))
        for one in answer.findings:
            numbers = {name: getattr(one, name) for name in list(blank)[:-1]}
            listed.append({**about, **numbers, "finding": one.verdict})
        if not answer.findings:
            listed.append({**about, **blank})
    return listed


__all__ = ["CONFIRMED", "PAPERS", "VERDICTS", "Answer", "Finding", "Item", "answers", "counts", "items", "rows"]
