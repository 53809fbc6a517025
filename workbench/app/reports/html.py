"""Pages of a report: an executed notebook as one self-contained HTML file.

The notebook stores a figure once, as plotly's own JSON: JupyterLab draws it even in an untrusted notebook. The page
draws the same JSON with one copy of plotly.js in its head: interactive without a network, also when sent alone.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
from jinja2 import DictLoader
from nbconvert import HTMLExporter
from nbconvert.preprocessors import Preprocessor
from plotly.offline import get_plotlyjs

from workbench.app.explore.editor import html as prompt_html
from workbench.app.reports.sanitize_figure import inert
from workbench.plots.marks.theme import PAGE_STYLE

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
  .jp-RenderedHTMLCommon { overflow-x: auto; }
  {{ resources.figure_style }}
  @media (prefers-color-scheme: dark) {
    {{ resources.include_css("static/theme-dark.css") | replace('<style type="text/css">', '')
      | replace('</style>', '') }}
    :root { color-scheme: dark; } body { background: var(--jp-layout-color0); color: var(--jp-content-font-color1); }
  }
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
    """Replace every plotly output, and every prompt one can touch, by a div and the script that draws it."""

    def preprocess_cell(self, cell: Any, resources: Any, index: int) -> tuple[Any, Any]:
        for number, output in enumerate(cell.get("outputs", [])):
            if figure := output.get("data", {}).get(PLOTLY):
                height = figure.get("layout", {}).get("height") or 450
                name = f"figure-{index}-{number}"
                output.data = {"text/html": FIGURE.format(name=name, height=height, figure=script_json(inert(figure)))}
            if prompt := output.get("data", {}).get(prompt_html.MIME):
                output.data = {"text/html": prompt_html.body(prompt, f"prompt-{index}-{number}")}
        return cell, resources


def script_json(value: Any) -> str:
    """Return JSON that is safe inside a <script> element."""
    return json.dumps(value).replace("</", "<\\/").replace("<!--", "<\\!--")


def notebook_page(executed: Path, page: Path) -> None:
    """Write the executed notebook as one HTML file, interactive without a network."""
    exporter = HTMLExporter(
        template_file="page.html.j2",
        extra_loaders=[DictLoader({"page.html.j2": NOTEBOOK})],
        preprocessors=[_PlotlyToHtml],
    )
    text, _ = exporter.from_filename(str(executed), resources={"plotly_js": get_plotlyjs(), "figure_style": PAGE_STYLE})
    page.write_text(text, encoding="utf-8")


def figures(executed: Path) -> Iterator[dict[str, Any]]:
    """Yield the figures of an executed notebook as plotly JSON, those of a cell tagged `thumbnail` first."""
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
