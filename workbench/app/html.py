"""Pages of a report: an executed notebook as one self-contained HTML file, and the index over all of them.

The notebook stores a figure once, as plotly's own JSON: JupyterLab draws it even in an untrusted notebook. The page
draws the same JSON with one copy of plotly.js in its head: interactive without a network, also when sent alone.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
from jinja2 import DictLoader, Environment
from nbconvert import HTMLExporter
from nbconvert.preprocessors import Preprocessor
from plotly.offline import get_plotlyjs

PLOTLY = "application/vnd.plotly.v1+json"

# Blocks that would load require.js, MathJax, Mermaid and the widget manager from the network are empty.
NOTEBOOK = """
{%- extends 'lab/index.html.j2' -%}
{%- block html_head_js -%}<script>{{ resources.plotly_js }}</script>{%- endblock -%}
{%- block jupyter_widgets -%}{%- endblock -%}
{%- block html_head_js_mathjax -%}{%- endblock -%}
{%- block html_head_js_mermaidjs -%}{%- endblock -%}
{%- block html_head_css -%}
<style>
  main { max-width: 1100px; margin: 0 auto; }
  .report-bar { max-width: 1100px; margin: 8px auto; font: 14px system-ui, sans-serif; display: flex; gap: 16px; }
  body:not(.with-code) .jp-CodeCell .jp-Cell-inputWrapper, .jp-OutputPrompt, .jp-InputPrompt { display: none; }
</style>
{%- endblock -%}
{%- block body_header -%}
{{ super() }}
<nav class="report-bar"><a href="../index.html">← Report</a>
<label><input type="checkbox" onchange="document.body.classList.toggle('with-code', this.checked)"> Show code</label>
</nav>
{%- endblock -%}
"""

FIGURE = """<div id="{name}" style="min-height:{height}px"></div>
<script>(() => {{ const figure = {figure}; figure.config = {{responsive: true, displaylogo: false, ...figure.config}};
Plotly.newPlot("{name}", figure); }})();</script>"""


class _PlotlyToHtml(Preprocessor):
    """Replace every plotly output by a div and the script that draws it."""

    def preprocess_cell(self, cell: Any, resources: Any, index: int) -> tuple[Any, Any]:
        for number, output in enumerate(cell.get("outputs", [])):
            if figure := output.get("data", {}).get(PLOTLY):
                height = figure.get("layout", {}).get("height") or 450
                name = f"figure-{index}-{number}"
                output.data = {"text/html": FIGURE.format(name=name, height=height, figure=script_json(figure))}
        return cell, resources


def script_json(value: Any) -> str:
    """JSON that is safe inside a <script> element."""
    return json.dumps(value).replace("</", "<\\/").replace("<!--", "<\\!--")


def notebook_page(executed: Path, page: Path) -> None:
    """Write the executed notebook as one HTML file, interactive without a network."""
    exporter = HTMLExporter(
        template_file="page.html.j2",
        extra_loaders=[DictLoader({"page.html.j2": NOTEBOOK})],
        preprocessors=[_PlotlyToHtml],
    )
    text, _ = exporter.from_filename(str(executed), resources={"plotly_js": get_plotlyjs()})
    page.write_text(text, encoding="utf-8")


def figures(executed: Path) -> Iterator[dict[str, Any]]:
    """Yield the figures of an executed notebook as plotly JSON, those of a cell tagged `thumbnail` first."""
    cells = nbformat.read(executed, as_version=4).cells
    for cell in sorted(cells, key=lambda cell: "thumbnail" not in cell.metadata.get("tags", [])):
        for output in cell.get("outputs", []):
            if figure := output.get("data", {}).get(PLOTLY):
                yield figure


def title(notebook: Path) -> str:
    """Return the first markdown heading, or the file's name."""
    for cell in nbformat.read(notebook, as_version=4).cells:
        for line in cell.source.splitlines() if cell.cell_type == "markdown" else ():
            if line.startswith("# "):
                return line[2:].strip()
    return notebook.stem


INDEX = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Report</title><style>
:root { color-scheme: light dark; --line: #8884; --soft: #777; --ok: #1a7f37; --failed: #cf222e; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 1160px; margin: 32px auto; padding: 0 20px; }
h1 { margin: 0; } header p { color: var(--soft); margin: 4px 0 24px; }
main { display: grid; gap: 24px; grid-template-columns: repeat(auto-fill, minmax(330px, 1fr)); }
article { border: 1px solid var(--line); border-radius: 10px; overflow: hidden; }
article.failed img { opacity: 0.35; }
article > a img { display: block; width: 100%; aspect-ratio: 3/2; object-fit: cover; object-position: top;
  background: #fff; border-bottom: 1px solid var(--line); }
section { padding: 12px 16px 16px; } h2 { font-size: 18px; margin: 0 0 2px; } h2 a { color: inherit; }
.status { font-weight: 600; } .status.ok { color: var(--ok); } .status.failed { color: var(--failed); }
table { border-collapse: collapse; width: 100%; margin: 10px 0; font-size: 14px; }
td { border-top: 1px solid var(--line); padding: 3px 0; }
td + td { text-align: right; font-variant-numeric: tabular-nums; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; font-size: 13px; color: var(--failed); margin: 10px 0; }
nav { font-size: 14px; display: flex; gap: 2px 14px; flex-wrap: wrap; }
.group { margin: 40px 0 24px; } .group h2 { font-size: 22px; } .group p { color: var(--soft); margin: 4px 0; }
</style></head><body><header><h1>Report</h1><p>{{ summary }}</p></header>
{%- for group in groups %}
{%- if group.heading %}
<div class="group"><h2>{{ group.heading }}</h2><p>{{ group.note }}</p></div>{% endif %}
<main>
{%- for card in group.cards %}
<article class="{{ card.status }}"><a href="{{ card.page }}"><img src="{{ card.picture }}" alt=""></a><section>
<h2><a href="{{ card.page }}">{{ card.title }}</a></h2>
<div><span class="status {{ card.status }}">{{ card.status }}</span> · {{ "%.1f" | format(card.seconds) }} s</div>
{% if card.message %}<pre>{{ card.message }}</pre>{% endif %}
{%- if card.metrics %}<table>
{%- for name, value in card.metrics %}<tr><td>{{ name }}</td><td>{{ value }}</td></tr>{% endfor %}</table>{% endif -%}
<nav>{% for address, kind in card.files %}<a href="{{ address }}">{{ kind }}</a>{% endfor %}</nav></section></article>
{%- endfor %}
</main>
{%- endfor %}
</body></html>
"""

KINDS = {".html": "page", ".ipynb": "notebook"}
NOTHING = "data:image/gif;base64,R0lGODlhAQABAAAAACw="  # in place of a picture


def card(
    folder: Path, title: str, status: str, seconds: float, message: str, metrics: Mapping[str, Any]
) -> dict[str, Any]:
    """Return one notebook's entry in the index. `folder` lies beside the index and holds the files of its run."""
    shown = [(name, _short(value)) for name, value in metrics.items() if isinstance(value, int | float)][:8]
    files = sorted(path for path in folder.iterdir() if path.suffix in (".html", ".ipynb", ".json", ".parquet"))
    page, picture = folder / f"{folder.name}.html", next(folder.glob("thumbnail.*"), None)
    return {
        "page": _address(page if page.exists() else page.with_suffix(".ipynb")),
        "picture": _address(picture) if picture else NOTHING,
        "files": [(_address(path), KINDS.get(path.suffix, path.name)) for path in files],
        "metrics": shown,
        **{"title": title, "status": status, "seconds": seconds, "message": message},
    }


@dataclass(frozen=True)
class Group:
    """Entries of the index that stand together, under a heading with a sentence where they have one."""

    cards: Sequence[dict[str, Any]]
    heading: str = ""
    note: str = ""


def index_page(summary: str, groups: Sequence[Group]) -> str:
    """Return the page over all notebooks."""
    return Environment(autoescape=True).from_string(INDEX).render(summary=summary, groups=groups)


def _address(path: Path) -> str:
    return os.path.join(path.parent.name, path.name)


def _short(value: float) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,.4g}" if isinstance(value, float) else f"{value:,}"
