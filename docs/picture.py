"""The picture in the README: the first view of the prompt editor. `make picture` draws it.

python docs/picture.py [PICTURE]       the file to write
"""

import sys
import tempfile
from io import BytesIO
from pathlib import Path

from PIL import Image

from workbench import data, explore, models
from workbench.app.explore.editor import html
from workbench.app.explore.editor.choices import EditorRequest
from workbench.app.explore.editor.grid import PromptPage
from workbench.app.notebooks import notebook
from workbench.app.reports.thumbnail import screenshot

PICTURE = Path(__file__).with_name("prompt.png")
SOONER = 0.6  # share of full attention's TTFT that the recomputed column may take


def shows(page: PromptPage) -> bool:
    """Return whether full attention is right, plain reuse wrong, and the recomputed column right and faster."""
    wanted = EditorRequest.of(page.data["wanted"])
    recomputed, reuse = (page.result(column) for column in wanted.columns)
    answers, seconds = recomputed["answers"], recomputed["bill"]["seconds"]["method"]
    rights = [answers["full"]["right"], reuse["answers"]["method"]["right"], answers["method"]["right"]]
    return rights == [True, False, True] and seconds < SOONER * answers["seconds_full"]


def first_view() -> str:
    """Return the first view of notebook `00_start_here` with the reader, once it `shows` the point of the editor."""
    first = notebook.SHOWN[name := notebook.READER]
    (sample,) = data.load(first["data"])
    chosen = {"selectors": ["none", "query_guided"], "ratios": [0.15], "orders": 1}
    if shows(page := explore.prompt_page(models.load(name), sample, **chosen)):
        return html.page(page.data)
    sys.exit(f"{first['data']} does not show what recomputing wins back with {name}")


def with_palette(png: bytes, colours: int = 256) -> bytes:
    """Return a PNG with a palette of `colours`, a third of the size."""
    small = BytesIO()
    image = Image.open(BytesIO(png)).convert("RGB")
    image.quantize(colours, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(small, "PNG", optimize=True)
    return small.getvalue()


def main(picture: Path = PICTURE) -> None:
    """Draw the picture."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "picture.html")
        page.write_text(first_view(), encoding="utf-8")
        if not screenshot(page, picture, width=1280, height=1016):
            sys.exit(f"{picture} was not drawn: it needs Chromium")
    picture.write_bytes(with_palette(picture.read_bytes()))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
