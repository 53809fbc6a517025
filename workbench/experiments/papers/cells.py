"""Which cells of the notebooks answer which figure or table: cells name them in their metadata.

"metadata": {"workbench": {"answers": ["fusionrag-fig-16", "fusionrag-fig-17"]}}
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from workbench.core.errors import BadInput

Cell = tuple[str, str]  # notebook without its ending, id of the cell


def of_folder(folder: str | Path) -> dict[str, list[Cell]]:
    """Read the notebooks of a folder: the cells of every item they name, in their order.

    Raises BadInput for a folder without notebooks, and for an answer that is no list of names.
    """
    paths = sorted(Path(folder).glob("[0-9][0-9]_*.ipynb"))
    if not paths:
        raise BadInput(f"{folder} holds no notebooks: the folder of 01_masks.ipynb and the others is needed")
    found: dict[str, list[Cell]] = {}
    for path in paths:
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            for key in _answers(cell, path):
                found.setdefault(key, []).append((path.stem, cell["id"]))
    return found


def _answers(cell: Mapping[str, Any], path: Path) -> Iterable[str]:
    named = cell["metadata"].get("workbench", {}).get("answers", [])
    if not isinstance(named, list) or not all(isinstance(key, str) for key in named):
        raise BadInput(f"{path.name}, cell {cell.get('id')}: answers is {named!r}; a list of names is needed")
    return named


def address(cell: Cell, live: bool) -> str:
    """Return where a cell stands, seen from another notebook: in Jupyter (`live`), or from its page in a report."""
    notebook, number = cell
    place = f"{notebook}.ipynb" if live else f"../{notebook}/{notebook}.html"
    return f"{place}#cell-id={number}"
