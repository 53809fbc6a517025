"""Write a figure to a file: PNG, SVG and PDF by the local Chromium; HTML, CSV and LaTeX without."""

import json
import re
import subprocess
import tempfile
from html import unescape
from pathlib import Path

import plotly.graph_objects as go

from workbench.app.reports.thumbnail import FLAGS, chromium, screenshot
from workbench.core.errors import BadInput
from workbench.core.utils.files import write_atomically, write_text
from workbench.plots.marks.pages import render
from workbench.plots.marks.theme import TURNED
from workbench.results import figure_data, latex

KINDS = ("png", "svg", "pdf", "html", "csv", "tex")
LARGEST = 40_000_000  # bytes of a page

OWN = {"responsive": False, "displaylogo": False, "toImageButtonOptions": {"format": "svg"}}


def page_of(figure: go.Figure, theme: str = "", svg: bool = False, still: bool = False) -> str:
    """Return a self-contained page with one figure; `theme` is light, dark, or "" for the reader's."""
    config = {"staticPlot": True} if still else OWN
    return render("one_figure", figure=json.loads(figure.to_json()), theme=theme, config=config, svg=svg)


def write_figure(figure: go.Figure, path: str | Path, dark: bool = False) -> Path:
    """Write a figure as PNG, SVG, PDF or HTML, or its data as CSV or LaTeX, by the ending of `path`; return the path.

    HTML pages follow the reader's theme unless `dark` is set. Raises BadInput for another ending, a missing folder, a
    picture without Chromium installed, and a page over 40 MB.
    """
    path = Path(path)
    kind = path.suffix.lower().lstrip(".")
    if kind not in KINDS:
        raise BadInput(f"{path.name!r} ends in {path.suffix or 'nothing'!r}: figures are written as {', '.join(KINDS)}")
    if not path.parent.is_dir():
        raise BadInput(f"{str(path.parent)!r} is no folder: a file in a folder that exists is needed")
    if kind == "html":
        text = page_of(figure, "dark" if dark else "")
        if len(text) > LARGEST:
            raise BadInput(f"the page would have {len(text) / 1e6:.0f} MB, at most {LARGEST / 1e6:.0f} are written")
        write_text(path, text)
        return path
    if kind in ("csv", "tex"):
        data = figure_data(figure)
        write_text(path, data.to_csv(index=False) if kind == "csv" else latex(data))
        return path
    if chromium() is None:
        raise BadInput(f"no Chromium draws {kind} on this machine: install chromium, or write .html")
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "figure.html")
        drawn = page_of(figure, "dark" if dark else "light", svg=kind == "svg", still=True)
        page.write_text(drawn, encoding="utf-8")
        return {"svg": _svg, "pdf": _pdf, "png": _png}[kind](figure, page, path, dark)


def _size(figure: go.Figure) -> tuple[int, int]:
    return int(figure.layout.width or 700), int(figure.layout.height or 450)


def _pdf(figure: go.Figure, page: Path, path: Path, dark: bool) -> Path:
    """Print the page to a PDF of the figure's size."""
    width, height = _size(figure)
    paper = f"<style>@page {{ size: {width}px {height + 1}px; margin: 0; }}</style>"
    drawn = page.read_text(encoding="utf-8").replace("</head>", f"{paper}</head>", 1)
    page.write_text(drawn, encoding="utf-8")
    printed = page.with_suffix(".pdf")
    options = [f"--user-data-dir={page.parent}", "--no-pdf-header-footer", f"--print-to-pdf={printed}"]
    done = _chromium([*options, "--virtual-time-budget=10000", page.as_uri()])
    if done is None or not printed.is_file():
        raise BadInput(f"Chromium has not drawn {path.name}: write .html instead")
    write_atomically(path, lambda part: part.write_bytes(printed.read_bytes()))
    return path


def _png(figure: go.Figure, page: Path, path: Path, dark: bool) -> Path:
    size = _size(figure)

    def draw(part: Path) -> None:
        picture = page.with_suffix(".png")
        if not screenshot(page, picture, *size):
            raise BadInput(f"Chromium has not drawn {path.name}: write .html instead")
        part.write_bytes(picture.read_bytes())

    write_atomically(path, draw)
    return path


def _chromium(options: list[str]) -> subprocess.CompletedProcess[bytes] | None:
    """Run Chromium; return None on a timeout."""
    try:
        command = [str(chromium()), *FLAGS.split(), *options]
        return subprocess.run(command, capture_output=True, timeout=60, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return None


def _svg(figure: go.Figure, page: Path, path: Path, dark: bool) -> Path:
    done = _chromium([f"--user-data-dir={page.parent}", "--dump-dom", page.as_uri()])
    found = re.search(r'<pre id="svg">(.*?)</pre>', done.stdout.decode() if done else "", re.DOTALL)
    if not found:
        raise BadInput(f"Chromium has not drawn {path.name}: write .html instead")
    text = unescape(found[1])
    if dark:
        turn = f"filter: {TURNED}"
        root, rest = text.split(">", 1)
        own = ' style="' if ' style="' in root else None
        root = root.replace(own, f"{own}{turn}; ", 1) if own else f'{root} style="{turn}"'
        text = f"{root}>{rest}"
    write_text(path, text)
    return path
