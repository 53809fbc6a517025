"""The pictures in the README: figures of a report. `make picture` runs the notebooks that they show and draws them.

python docs/picture.py [REPORT] [PICTURE]       a folder that `workbench report` wrote, and the file to write
python docs/picture.py --notebooks              the notebooks whose figures are shown
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from plotly.offline import get_plotlyjs

from workbench.app.explore.editor import html as prompt_html
from workbench.app.reports import html
from workbench.app.reports.thumbnail import screenshot

REPORT, PICTURE = Path("runs/report"), Path("docs/overview.png")
FIGURES = (  # two columns of two
    ("01_masks", "The prompt and its blocks"),
    ("01_masks", "Who sees whom"),
    ("03_reuse", "How well the model answers"),
    ("03_reuse", "Operations to the first token"),
)
TOUCHED, PROMPT = "00_start_here", "prompt.png"  # a notebook with a prompt one can touch, and its picture
PAGE = """<!doctype html><meta charset="utf-8"><style>body {{ margin: 12px; width: 1990px; }}
main {{ display: flex; flex-flow: column wrap; height: {height}px; gap: 6px 14px; align-content: flex-start; }}
</style><script>{plotly}</script><main>{places}</main><script>{drawn}</script>"""
DRAWN = "(() => {{ const f = {figure}; Plotly.newPlot('f{number}', f.data, f.layout, {{staticPlot: true}}); }})();"


def figure(notebook: Path, title: str) -> dict[str, Any]:
    """The figure of an executed notebook whose title this is."""
    for found in html.figures(notebook):
        if any(title in note.get("text", "") for note in found["layout"].get("annotations", [])):
            return found
    sys.exit(f"{notebook} has no figure “{title}”")


def touched(notebook: Path) -> str:
    """The page of the prompt that an executed notebook shows."""
    for cell in nbformat.read(notebook, as_version=4).cells:
        for output in cell.get("outputs", []):
            if data := output.get("data", {}).get(prompt_html.MIME):
                return prompt_html.page(data)
    sys.exit(f"{notebook} shows no prompt one can touch")


def main(report: Path = REPORT, picture: Path = PICTURE) -> None:
    chosen = [figure(report / name / f"{name}.ipynb", title) for name, title in FIGURES]
    heights = [found["layout"]["height"] for found in chosen]
    height = max(sum(heights[:2]), sum(heights[2:])) + 6
    text = PAGE.format(
        plotly=get_plotlyjs(),
        height=height,
        places="".join(f'<div id="f{n}"></div>' for n in range(len(chosen))),
        drawn="".join(DRAWN.format(figure=html.script_json(f), number=n) for n, f in enumerate(chosen)),
    )
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "picture.html")
        page.write_text(text, encoding="utf-8")
        if not screenshot(page, picture, width=2014, height=height + 24):
            sys.exit(f"{picture} was not drawn: it needs Chromium")
        page.write_text(touched(report / TOUCHED / f"{TOUCHED}.ipynb"), encoding="utf-8")
        screenshot(page, picture.with_name(PROMPT), width=1280, height=1040)


if __name__ == "__main__":
    if sys.argv[1:] == ["--notebooks"]:
        print(*(f"notebooks/{name}.ipynb" for name in dict.fromkeys((TOUCHED, *(name for name, _ in FIGURES)))))
    else:
        main(*map(Path, sys.argv[1:]))
