"""The index of a report: one entry per notebook with picture, first paragraph, figures, parameters and raw data.

The page works offline. Pictures are drawn when they scroll into view, by the plotly.js next to the page, and again
when the theme changes. Texts from notebooks are escaped.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import papermill

from workbench.app.notebooks.notebook import FINDING, HERE
from workbench.app.reports import thumbnail
from workbench.app.reports.html import PLOTLY
from workbench.plots.marks import theme
from workbench.plots.marks.pages import render

KINDS = {".html": "Open the page", ".ipynb": "Notebook, executed (.ipynb)"}
DATA = (".json", ".parquet")
PLOTLY_FILE = "plotly.min.js"
MARKUP = re.compile(r"<[^>]*>")
NAME = "Cached-block workbench"
ABOUT = (
    "How a language model's answers change when the keys and values of its prompt are cached block by block, reused at "
    "other positions, partly recomputed, or attended to only in part. Each page answers one question with a figure and "
    "a sentence and was executed for this report. Figures are interactive and need no network."
)
MOST_VALUES = 3
MOST_CATEGORIES = 100  # per line, among the search words
SHOWN_METRICS = 8
FAILED = "papermill-error-cell-tag"  # tag of cells that papermill adds to a failed notebook

# Colours of figures on a dark page, by light colour.
DARK = {
    theme.PAPER: "#16181d",
    theme.INK: "#e8eaed",
    theme.MUTED: "#a3a9b2",
    theme.FAINT: "#2a2e35",
    theme.RULE: "#454b54",
}


@dataclass(frozen=True)
class Group:
    """A group of index entries, with an optional heading and sentence."""

    cards: Sequence[dict[str, Any]]
    heading: str = ""
    note: str = ""


def page(facts: Sequence[tuple[str, str]], groups: Sequence[Group], links: Sequence[tuple[str, str]] = ()) -> str:
    """Return the index page; `facts` (name, value) and `links` (address, text) are at the top."""
    texts = {"name": NAME, "about": ABOUT, "facts": facts, "groups": groups, "links": links}
    return render("index", title=f"{NAME}: report", dark=DARK, plotly_file=PLOTLY_FILE, **texts)


def measured_with(metrics: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return models, data and devices of the notebooks' measurements: (name, values), most frequent first."""
    here = [own for each in metrics if isinstance(own := each.get(HERE), Mapping)]
    found = []
    for key in ("model", "data", "device"):
        counted = Counter(str(own[key]) for own in here if own.get(key))
        found += [(key, ", ".join(value for value, _ in counted.most_common(MOST_VALUES)))] if counted else []
    return found


def card(
    folder: Path, title: str, status: str, seconds: float, message: str, metrics: Mapping[str, Any]
) -> dict[str, Any]:
    """Return one notebook's index entry. `folder`, next to the index, holds the files of its run."""
    executed = folder / f"{folder.name}.ipynb"
    shown = executed.with_suffix(".html")
    files = sorted(file for file in folder.iterdir() if file.suffix in (*KINDS, *DATA))
    cells = json.loads(executed.read_text(encoding="utf-8"))["cells"] if executed.exists() else []
    titled = [(f"{_address(shown)}#{name}", text) for name, text in _figures(cells)]
    parameters = list(_parameters(executed)) if executed.exists() else []
    numbers = [(f"{name} ({source})", _short(value)) for source, name, value in _numbers(metrics)]
    about = _first_paragraph(cells)
    drawn = folder / thumbnail.FILE
    words = [title, message, metrics.get(FINDING, ""), _prose(cells), *(text for _, text in titled)]
    words += _drawn(cells)
    words += [
        *(name for _, name, _ in _numbers(metrics)),
        *(f"{name} {value}" for name, value, _ in parameters),
        *(file.name for file in files),
    ]
    return {
        "page": _address(shown if shown.exists() else executed),
        "name": folder.name,
        "picture": _address(drawn) if drawn.exists() else "",
        "files": [(_address(file), KINDS[file.suffix]) for file in files if file.suffix in KINDS],
        "data": [(_address(file), file.name) for file in files if file.suffix in DATA],
        "metrics": numbers[:SHOWN_METRICS],
        "about": about,
        "finding": metrics.get(FINDING, ""),
        "figures": titled,
        "parameters": parameters,
        "searched": " ".join(" ".join(words).lower().split()),
        **{"title": title, "status": status, "seconds": seconds, "message": message},
    }


def _figures(cells: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield the anchor and title of every figure with a title."""
    for index, cell in enumerate(cells):
        for number, output in enumerate(cell.get("outputs", [])):
            if (figure := output.get("data", {}).get(PLOTLY)) and (title := figure_title(figure)):
                yield f"figure-{index}-{number}", title


def _drawn(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the distinct words in figures besides titles: names of lines and categories."""
    words: dict[str, None] = {}
    for output in (output for cell in cells for output in cell.get("outputs", [])):
        for trace in output.get("data", {}).get(PLOTLY, {}).get("data", []):
            listed = [value for axis in ("x", "y") if isinstance(trace.get(axis), list) for value in trace[axis]]
            named = [trace.get("name"), *listed[:MOST_CATEGORIES]]
            words |= dict.fromkeys(MARKUP.sub("", text) for text in named if isinstance(text, str))
    return list(words)


def figure_title(figure: Mapping[str, Any]) -> str:
    """Return a figure's title, from `plots.marks.theme.finish` or plotly's own; "" without one."""
    layout = figure.get("layout", {})
    framed = theme.unframed(figure)[0].get("title", "")
    own = layout.get("title", {})
    return MARKUP.sub("", framed or (own.get("text", "") if isinstance(own, dict) else own) or "")


def _numbers(metrics: Mapping[str, Any]) -> Iterator[tuple[str, str, float]]:
    """Yield (source, name, number) of a notebook's metrics."""
    for source, values in metrics.items():
        for name, value in values.items() if isinstance(values, Mapping) else ():
            if isinstance(value, int | float):
                yield source, str(name), value


def _first_paragraph(cells: Sequence[Mapping[str, Any]]) -> str:
    """Return the first paragraph after a notebook's title."""
    own = (cell for cell in cells if cell["cell_type"] == "markdown" and FAILED not in cell["metadata"].get("tags", ()))
    text = next(("".join(cell["source"]) for cell in own), "")
    parts = (part for part in map(str.strip, text.split("\n\n")) if part and not part.startswith("#"))
    return next(parts, "").replace("`", "").replace("*", "")


def _prose(cells: Sequence[Mapping[str, Any]]) -> str:
    """Return the markdown of a notebook."""
    return " ".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


def _parameters(executed: Path) -> Iterator[tuple[str, str, str]]:
    """Yield name, value in this run and meaning of every parameter."""
    given = json.loads(executed.read_text(encoding="utf-8"))["metadata"].get("papermill", {}).get("parameters", {})
    for name, declared in papermill.inspect_notebook(executed).items():
        if name != "output":
            yield name, repr(given[name]) if name in given else declared["default"], declared["help"]


def _address(path: Path) -> str:
    """Return a file's address relative to the index."""
    return f"{quote(path.parent.name)}/{quote(path.name)}"


def _short(value: float) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,.4g}" if isinstance(value, float) else f"{value:,}"
