"""Pages of a report: an executed notebook as one self-contained HTML file.

Notebooks store a figure once, as plotly's JSON, which JupyterLab draws even in untrusted notebooks. The page draws the
same JSON with one embedded copy of plotly.js: interactive and self-contained. Titles, captions and tables become HTML;
plots take the page's width (page.js, page.css).
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import nbformat
from jinja2 import FileSystemLoader
from nbconvert import HTMLExporter
from nbconvert.preprocessors import Preprocessor
from plotly.offline import get_plotlyjs

from workbench.app.explore.editor import html as prompt_html
from workbench.plots.marks import pages, theme
from workbench.plots.marks.pages import inert
from workbench.plots.marks.table import original_text

PLOTLY = "application/vnd.plotly.v1+json"

HERE = Path(__file__).parent
FIRST, STEPS = '<div class="wb-first"></div>', "<!-- other pages -->"  # placeholders for the first screen and the links
OWN = {"model": "MODEL", "data": "FILE"}  # parameters that users set first
OTHER = re.compile(r'<a href="(?P<name>[^"/:]+)\.ipynb"[^>]*>(?P<text>[^<]*)</a>')  # a link to a notebook
ANSWER = "answer"  # tag of the cell with the picture that is shown before a notebook is run
FOLDED = 200  # characters; longer captions are folded

FIGURE = """<figure class="wb-figure">{head}<div class="wb-plot" id="{name}" style="min-height:{height}px"></div>{foot}
</figure><script>workbench.draw("{name}", {figure});</script>"""
TABLE = """<figure class="wb-figure" id="{name}">{head}<div class="wb-scroll"><table class="wb-table">
<thead>{heads}</thead><tbody>{rows}</tbody></table></div>{foot}</figure>"""
MOVED = '<p class="wb-own">The figure of this section is <a href="#{name}">at the top of the page</a>.</p>'


def figure_html(figure: Mapping[str, Any], name: str) -> str:
    """Return the HTML of a figure in plotly's JSON: title and texts, plot or table, caption."""
    texts, plot = theme.unframed(inert(dict(figure)))
    head = f"<h3>{texts['title']}</h3>" if texts else ""
    head += f'<p class="wb-notice">{texts["notice"]}</p>' if texts.get("notice") else ""
    foot = caption = texts.get("caption", "")
    if caption:
        fold = len(caption) > FOLDED
        foot = f'<p class="wb-caption">{caption}</p>'
        if fold:
            foot = f'<details class="wb-caption"><summary>How this was measured</summary>{caption}</details>'
    if [trace.get("type") for trace in plot.get("data", [])] == ["table"]:
        heads, rows = _table(plot["data"][0])
        return TABLE.format(name=name, head=head, heads=heads, rows=rows, foot=foot)
    height = plot.get("layout", {}).get("height") or 450
    return FIGURE.format(name=name, head=head, height=height, figure=script_json(plot), foot=foot)


def _table(trace: Mapping[str, Any]) -> tuple[str, str]:
    """Return head and body of a plotly table as HTML, without its line breaks."""
    header, cells = trace["header"], trace["cells"]
    sides = ["left" if side == "left" else "" for side in header.get("align", [])] or [""] * len(header["values"])
    fill = cells.get("fill", {}).get("color")
    fill = fill[0] if isinstance(fill, list) else []
    heads = _row(header["values"], sides, "th")
    rows = list(zip(*cells["values"], strict=True))
    groups = [" class=group" if at < len(fill) and fill[at] == theme.FAINT else "" for at in range(len(rows))]
    return heads, "\n".join(_row(row, sides, "td", group) for row, group in zip(rows, groups, strict=True))


def _row(texts: Iterable[Any], sides: Sequence[str], tag: str, group: str = "") -> str:
    written = [original_text(str(text)) for text in texts]
    looks = [side or ("" if " " in text else "number") for text, side in zip(written, sides, strict=True)]
    cells = (
        f"<{tag}{f' class={look}' if look else ''}>{text}</{tag}>" for text, look in zip(written, looks, strict=True)
    )
    return f"<tr{group}>{''.join(cells)}</tr>"


class _PlotlyToHtml(Preprocessor):
    """Replaces every plotly output and prompt editor by a div and the script that draws it."""

    def preprocess_cell(self, cell: Any, resources: Any, index: int) -> tuple[Any, Any]:
        for number, output in enumerate(cell.get("outputs", [])):
            if figure := output.get("data", {}).get(PLOTLY):
                output.data = {"text/html": figure_html(figure, f"figure-{index}-{number}")}
            if prompt := output.get("data", {}).get(prompt_html.MIME):
                output.data = {"text/html": prompt_html.body(prompt, f"prompt-{index}-{number}")}
        return cell, resources


def script_json(value: Any) -> str:
    """Return JSON that is safe inside a <script> element."""
    return json.dumps(value).replace("</", "<\\/").replace("<!--", "<\\!--")


def notebook_page(executed: Path, page: Path, finding: str = "") -> None:
    """Write the executed notebook as one self-contained, interactive HTML file.

    The first screen has the question, `finding`, the main picture, and how to do the same with another model.
    """
    notebook = nbformat.read(executed, as_version=4)
    notebook.cells = [cell for cell in notebook.cells if ANSWER not in cell.metadata.get("tags", [])]
    first = _first_screen(notebook, finding)
    if notebook.cells and notebook.cells[0].cell_type == "markdown":
        notebook.cells[0].source += f"\n\n{FIRST}"
    exporter = HTMLExporter(
        template_file="notebook.html",
        extra_loaders=[FileSystemLoader(pages.FOLDER)],
        preprocessors=[_PlotlyToHtml],
    )
    resources = {"plotly_js": get_plotlyjs(), "figure_style": theme.FOLLOWS_READER, "steps": STEPS}
    resources |= {f"page_{kind}": (HERE / f"page.{kind}").read_text(encoding="utf-8") for kind in ("js", "css")}
    resources |= {f"saving_{kind}": pages.saving(kind) for kind in ("js", "css")}
    resources |= {"notebook": quote(executed.name), "metadata": {"name": title(executed)}}
    text, _ = exporter.from_notebook_node(notebook, resources=resources)
    page.write_text(text.replace(FIRST, first, 1), encoding="utf-8")


def _first_screen(notebook: Any, finding: str) -> str:
    """Return the finding, how to do the same with the user's model, and the main picture."""
    name = Path(notebook.metadata.get("papermill", {}).get("input_path", "")).name
    parameters = next((cell.source for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])), "")
    names, first = re.findall(r"^(\w+):", parameters, re.M), ""
    if finding:
        first += f'<p class="wb-finding">{escape(finding)}</p>'
    given = "".join(f" -p {key}={value}" for key, value in OWN.items() if key in names)
    here = ", in the sections measured here" if "results" in names else ""
    ways = {f"Your {' and '.join(key for key in OWN if key in names)}{here}:": given} if given else {}
    ways |= {"Your results:": " --results runs/mine"} if "results" in names else {}
    if name and ways:
        lines = (f"{head} <code>workbench report notebooks/{escape(name + way)}</code>" for head, way in ways.items())
        first += f'<p class="wb-own">{"<br>".join(lines)}</p>'
    return f'{first}<nav class="wb-contents"></nav>{_main_picture(notebook)}'


def _main_picture(notebook: Any) -> str:
    """Move the figure of the cell tagged `thumbnail` out of `notebook`, unless a prompt editor comes first."""
    outputs = [output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", [])]
    if any(prompt_html.MIME in data for data in outputs):
        return ""
    for index, cell in enumerate(notebook.cells):
        for number, output in enumerate(cell.get("outputs", [])):
            figure = output.get("data", {}).get(PLOTLY) if "thumbnail" in cell.metadata.get("tags", []) else None
            if figure and any(trace.get("type") != "table" for trace in figure.get("data", [])):
                name = f"figure-{index}-{number}"
                output.data = {"text/html": MOVED.format(name=name)}
                return figure_html(figure, name)
    return ""


def link(pages: Sequence[tuple[Path, str]]) -> None:
    """Add links to the previous and next page to every page (path, title) of a report.

    Links to other notebooks become links to their pages, or text if the report has no such page.
    """
    known = {page.stem: f"../{quote(page.parent.name)}/{quote(page.name)}" for page, _ in pages}
    for at, (page, _) in enumerate(pages):
        steps = []
        for beside, text in ((at - 1, "← {}"), (at + 1, "{} →")):
            if 0 <= beside < len(pages):
                path, name = pages[beside]
                steps.append(f'<a href="{known[path.stem]}">{escape(text.format(name.partition(":")[0]))}</a>')
        linked = page.read_text(encoding="utf-8").replace(STEPS, "".join(steps), 1)
        page.write_text(OTHER.sub(partial(_linked, known, page.stem), linked), encoding="utf-8")


def _linked(known: Mapping[str, str], own: str, found: re.Match[str]) -> str:
    """Return a link to a notebook as a link to its page, or its text; links to the page's `own` notebook stay."""
    if (name := unquote(found["name"])) == own:
        return found[0]
    return f'<a href="{known[name]}">{found["text"]}</a>' if name in known else found["text"]


def figures(executed: Path) -> Iterator[dict[str, Any]]:
    """Yield the figures of an executed notebook as plotly JSON, from cells tagged `thumbnail` first."""
    cells = nbformat.read(executed, as_version=4).cells
    for cell in sorted(cells, key=lambda cell: "thumbnail" not in cell.metadata.get("tags", [])):
        for output in cell.get("outputs", []):
            if figure := output.get("data", {}).get(PLOTLY):
                yield inert(figure)


def title(notebook: Path) -> str:
    """Return the first markdown heading, or the file's name."""
    for cell in nbformat.read(notebook, as_version=4).cells:
        for line in cell.source.splitlines() if cell.cell_type == "markdown" else ():
            if line.startswith("# "):
                return line[2:].strip()
    return notebook.stem
