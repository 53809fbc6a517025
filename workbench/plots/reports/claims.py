"""Judged claims as a filterable list without a script: one line per item, which unfolds to its measurements.

Notebook cells name the items that they show in their metadata: {"workbench": {"answers": ["fusionrag-fig-16"]}}.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from IPython.display import HTML

from workbench.core.errors import BadInput
from workbench.experiments.judging.claims import (
    CONFIRMED,
    CONTRADICTED,
    OPEN,
    VERDICTS,
    Judgement,
    items,
    papers,
    verdict,
)
from workbench.plots.marks.pages import render
from workbench.plots.marks.styles import SeriesStyle, SeriesStyles
from workbench.plots.marks.theme import GREEN, MUTED, RED

LOOKS = SeriesStyles(
    {
        CONFIRMED: SeriesStyle(GREEN, name=CONFIRMED),
        CONTRADICTED: SeriesStyle(RED, name=CONTRADICTED),
        OPEN: SeriesStyle(MUTED, name=OPEN),
    }
)
WORDS = {CONFIRMED: "yes", CONTRADICTED: "no", OPEN: "open"}
Cell = tuple[str, str]  # notebook name, cell id


def listing(
    judged: Sequence[Judgement], notebooks: str | Path, *, paper: str = "all", verdict: str = "all", live: bool = False
) -> HTML:
    """Draw one row per item and source, with filters by paper and verdict, and links to the cells that show it.

    notebooks        folder of the notebooks
    paper, verdict   initial filters: "all", or one of `claims.papers()` and of VERDICTS
    live             link to notebooks in Jupyter, else to report pages
    """
    rows, cells = claim_rows(judged), shown_in(notebooks)
    for row in rows:
        row["links"] = [(address(cell, live), f"notebook {cell[0][:2]}") for cell in cells.get(row["item"].item, [])]
    counted = {name: f"{name} ({sum(row['verdict'] == name for row in rows)})" for name in VERDICTS}
    shown = {"filters": {"paper": papers(), "verdict": counted}, "chosen": {"paper": paper, "verdict": verdict}}
    shown |= {"looks": LOOKS, "words": WORDS}
    shown |= {"rows": rows, "several": len({row["source"] for row in rows}) > 1}
    return HTML(render("claims", **shown))


def claim_rows(judged: Sequence[Judgement]) -> list[dict[str, Any]]:
    """Return one row per item and source: {key, item, paper, title, source, kind, verdict, number, judged, value: 1}.

    A list of symbols claims nothing and has no row. `title` names the paper, and whether the item shows how a method
    works (checked by tests) or its results.
    """
    rows = []
    sources = list(dict.fromkeys(one.source for one in judged))
    for item in items():
        for source in sources if not item.only_names else ():
            own = [one for one in judged if one.claim.item == item.item and one.source == source]
            about = {"key": item.item, "item": item, "paper": papers()[item.paper], "source": source}
            kind = "how it works" if item.is_mechanism else "findings"
            title = f"{about['paper']}: {kind}" + (f" · {source}" if len(sources) > 1 else "")
            said = verdict(own)
            about |= {"verdict": said, "kind": kind, "title": title, "number": _number(own, said)}
            rows.append({**about, "judged": own, "value": 1})
    return rows


def _number(judged: Sequence[Judgement], said: str) -> str:
    """Return the deciding number with its threshold; for an open item the undecided number, or what is missing.

    Of several with the item's verdict, the one with most questions or runs.
    """
    deciding = [one for one in judged if one.number is not None and one.verdict == said and one.decides]
    if deciding:
        best = max(deciding, key=lambda one: one.number.n if one.number else 0)
        within = best.needs.startswith("the interval")  # its numbers show this
        why = best.needs.partition(" was")[0].partition(" correction")[0]
        threshold = best.side.removesuffix(" points")
        return f"{best.short_number}, claimed {threshold}" + (f"; {why}" if why and not within else "")
    if said != OPEN:
        return "held by tests"
    lacking = [one for one in judged if one.needs and not one.decides and one.claim.kind != "shown"]
    measured = [one for one in lacking if one.number is not None]
    if not measured:
        return "not measured"
    return max(measured, key=lambda one: one.number.n if one.number else 0).needs.partition(":")[0]


def shown_in(folder: str | Path) -> dict[str, list[Cell]]:
    """Read the notebooks of a folder: {item: cells that show it}, in order.

    Raises BadInput for a folder without notebooks, and for a cell that names an unknown item.
    """
    paths = sorted(Path(folder).glob("[0-9][0-9]_*.ipynb"))
    if not paths:
        raise BadInput(f"{folder} contains no notebooks: expected the folder with 01_masks.ipynb and the others")
    found: dict[str, list[Cell]] = {}
    known = {item.item for item in items()}
    for path in paths:
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            for name in _answers(cell, path):
                if name not in known:
                    raise BadInput(f"a cell answers {name!r}: there is no such figure or table")
                found.setdefault(name, []).append((path.stem, cell["id"]))
    return found


def _answers(cell: Mapping[str, Any], path: Path) -> Iterable[str]:
    named = cell["metadata"].get("workbench", {}).get("answers", [])
    if not isinstance(named, list) or not all(isinstance(key, str) for key in named):
        raise BadInput(f"{path.name}, cell {cell.get('id')}: answers is {named!r}; a list of names is needed")
    return named


def address(cell: Cell, live: bool) -> str:
    """Return the link to a cell from another notebook: in Jupyter (`live`), or in a report."""
    notebook, number = cell
    place = f"{notebook}.ipynb" if live else f"../{notebook}/{notebook}.html"
    return f"{place}#cell-id={number}"
