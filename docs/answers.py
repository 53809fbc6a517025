"""The picture at the head of every notebook: the main figure of its report, as JupyterLab shows it before a run.

python docs/answers.py [REPORT]        reads the notebooks of a report that `make report` wrote; needs Chromium
"""

import base64
import json
import sys
import tempfile
from collections.abc import Mapping
from math import ceil
from pathlib import Path
from typing import Any

from picture import with_palette
from plotly.offline import get_plotlyjs

from workbench.app.reports import html
from workbench.app.reports.thumbnail import MARGIN, picture, screenshot, shrink_figure, without_interaction
from workbench.plots.marks import theme

ROOT = Path(__file__).resolve().parents[1]
WIDTH, HEIGHT, TITLE, LINE = 600, 200, 34, 29  # px: of a picture, its plot, its title, a line of its legend
COLOURS, NAMES = 32, 6  # of a picture; maximum names of a legend, else there is none
CAPTION = "*The shipped result. Running the notebook draws the figure below and leaves this picture unchanged.*"
PAGE = '<body style="margin: 0"><div id="plot"></div><script>{}</script><script>Plotly.newPlot("plot", {})</script>'


def main(report: Path = ROOT / "runs" / "report") -> None:
    """Put the picture of every notebook into its cell tagged `answer`, at first the second."""
    for notebook in sorted((ROOT / "notebooks").glob("*.ipynb")):
        png = base64.b64encode(answer(report / notebook.stem / notebook.name)).decode()
        cells = (content := json.loads(notebook.read_text(encoding="utf-8")))["cells"]
        tagged = [html.ANSWER in cell["metadata"].get("tags", []) for cell in cells]
        own = [cell for cell, is_answer in zip(cells, tagged, strict=True) if not is_answer]
        source = ["![The answer](attachment:answer.png)\n", "\n", CAPTION]
        cell = {"attachments": {"answer.png": {"image/png": png}}, "cell_type": "markdown", "id": "answer"}
        at = tagged.index(True) if any(tagged) else 1
        content["cells"] = [*own[:at], cell | {"metadata": {"tags": [html.ANSWER]}, "source": source}, *own[at:]]
        notebook.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"{notebook.stem:<24} {len(png):,} bytes")


def answer(executed: Path) -> bytes:
    """Return the PNG of the main figure of an executed notebook: its first panel, with title and legend."""
    figure = picture(executed)["figure"]
    whole = next(each for each in html.figures(executed) if shrink_figure(without_interaction(each)) == figure)
    with tempfile.TemporaryDirectory() as folder:
        page, target = Path(folder, "answer.html"), Path(folder, "answer.png")
        framed = figure["layout"] | frame(figure, theme.unframed(whole)[0]["title"])
        drawn = html.script_json({**figure, "layout": framed, "config": {"staticPlot": True}})
        page.write_text(PAGE.format(get_plotlyjs(), drawn), encoding="utf-8")
        if not screenshot(page, target, WIDTH, framed["height"]):
            sys.exit(f"the picture of {executed.stem} was not drawn: it needs Chromium")
        return with_palette(target.read_bytes(), COLOURS)


def frame(figure: Mapping[str, Any], title: str) -> dict[str, Any]:
    """Return the part of a layout that gives a picture its title and a legend over the plot."""
    named = [trace["name"] for trace in figure["data"] if trace.get("showlegend") is not False and trace.get("name")]
    lines = ceil(sum(56 + 6.3 * len(name) for name in named) / (WIDTH - 60)) if 1 < len(named) <= NAMES else 0
    rows = len(figure["layout"].get("yaxis", {}).get("ticktext") or ())
    over = TITLE + LINE * lines
    tall = over + max(HEIGHT, 16 * rows + 40)
    legend = {"orientation": "h", "x": 0, "xref": "container", "y": 1 - TITLE / tall, "yref": "container"}
    return {
        "title": {"text": f"<b>{title}</b>", "x": 0.01, "y": 1 - 14 / tall, "font": {"size": 14}},
        "legend": legend | {"yanchor": "top", "font": {"size": 11}},
        "showlegend": lines > 0,
        "margin": MARGIN | {"t": over},
        **{"width": WIDTH, "height": tall},
    }


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
