"""The pictures in the README: figures of a report. `make picture` runs the notebooks that they show and draws them.

python docs/picture.py [REPORT] [PICTURE]       a folder that `workbench report` wrote, and the file to write
python docs/picture.py --notebooks              the notebooks whose figures are shown
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

from plotly.offline import get_plotlyjs

from workbench import data, explore, models
from workbench.app.explore.editor import html as prompt_html
from workbench.app.explore.editor.choices import Wanted
from workbench.app.explore.editor.grid import PromptPage
from workbench.app.notebooks import notebook
from workbench.app.reports import html
from workbench.app.reports.thumbnail import screenshot

REPORT, PICTURE = Path("runs/report"), Path("docs/overview.png")
FIGURES = (  # two columns of two
    ("01_masks", "The prompt and its blocks"),
    ("01_masks", "Which tokens attend to which"),
    ("03_reuse", "Exact match with and without reuse"),
    ("03_reuse", "Operations to the first token"),
)
PROMPT = "prompt.png"  # the first view of the prompt editor
SOONER = 0.6  # share of full attention's TTFT that the recomputed column may take
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


def shows(page: PromptPage) -> bool:
    """Whether full attention is right, plain reuse wrong, and the recomputed column right and sooner."""
    wanted = Wanted.of(page.data["wanted"])
    recomputed, reuse = (page.result(column) for column in wanted.columns)
    answers, seconds = recomputed["answers"], recomputed["bill"]["seconds"]["method"]
    rights = [answers["full"]["right"], reuse["answers"]["method"]["right"], answers["method"]["right"]]
    return rights == [True, False, True] and seconds < SOONER * answers["seconds_full"]


def first_view() -> str:
    """The first view of the notebook `00_start_here` with the reader: it `shows` what the editor is for."""
    first = notebook.SHOWN[name := notebook.READER]
    (sample,) = data.load(first["data"])
    chosen = {"selectors": ["none", "query_guided"], "ratios": [0.15], "orders": 1, "sparse": first["sparse"]}
    if shows(page := explore.prompt_page(models.load(name), sample, **chosen)):
        return prompt_html.page(page.data)
    sys.exit(f"{first['data']} does not show what recomputing wins back with {name}")


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
        page.write_text(first_view(), encoding="utf-8")
        screenshot(page, picture.with_name(PROMPT), width=1280, height=960)


if __name__ == "__main__":
    if sys.argv[1:] == ["--notebooks"]:
        print(*(f"notebooks/{name}.ipynb" for name in dict.fromkeys(name for name, _ in FIGURES)))
    else:
        main(*map(Path, sys.argv[1:]))
