"""The picture in the README: the first view of the prompt editor. `make picture` draws it.

python docs/picture.py [PICTURE]       the file to write
"""

import struct
import sys
import tempfile
import zlib
from pathlib import Path

import numpy as np

from workbench import data, explore, models
from workbench.app.explore.editor import html
from workbench.app.explore.editor.choices import Wanted
from workbench.app.explore.editor.grid import PromptPage
from workbench.app.notebooks import notebook
from workbench.app.reports.thumbnail import screenshot

PICTURE = Path(__file__).with_name("prompt.png")
SOONER = 0.6  # share of full attention's TTFT that the recomputed column may take


def shows(page: PromptPage) -> bool:
    """Return whether full attention is right, plain reuse wrong, and the recomputed column right and faster."""
    wanted = Wanted.of(page.data["wanted"])
    recomputed, reuse = (page.result(column) for column in wanted.columns)
    answers, seconds = recomputed["answers"], recomputed["bill"]["seconds"]["method"]
    rights = [answers["full"]["right"], reuse["answers"]["method"]["right"], answers["method"]["right"]]
    return rights == [True, False, True] and seconds < SOONER * answers["seconds_full"]


def first_view() -> str:
    """Return the first view of notebook `00_start_here` with the reader, once it `shows` the point of the editor."""
    first = notebook.SHOWN[name := notebook.READER]
    (sample,) = data.load(first["data"])
    chosen = {"selectors": ["none", "query_guided"], "ratios": [0.15], "orders": 1, "sparse": first["sparse"]}
    if shows(page := explore.prompt_page(models.load(name), sample, **chosen)):
        return html.page(page.data)
    sys.exit(f"{first['data']} does not show what recomputing wins back with {name}")


def pixels(png: bytes) -> np.ndarray:
    """Return the colours of a PNG of 8 bits a channel: [height, width, 3]."""
    at, data = 8, b""
    while at < len(png):
        size, kind = struct.unpack_from(">I4s", png, at)
        data += png[at + 8 : at + 8 + size] if kind == b"IDAT" else b""
        at += 12 + size
    width, height, _, kind = struct.unpack_from(">IIBB", png, 16)
    step = {2: 3, 6: 4}[kind]
    rows = np.frombuffer(zlib.decompress(data), np.uint8).reshape(height, -1)
    lines = [[0] * (width * step)]
    for how, *row in rows.tolist():
        for x, above in enumerate(lines[-1]):
            left, corner = (row[x - step], lines[-1][x - step]) if x >= step else (0, 0)
            near = min((left, above, corner), key=lambda one: abs(left + above - corner - one))  # Paeth's
            row[x] = row[x] + (0, left, above, (left + above) // 2, near)[how] & 255
        lines.append(row)
    return np.array(lines[1:], np.uint8).reshape(height, width, step)[..., :3]


def with_palette(image: np.ndarray, most: int = 256) -> bytes:
    """Return a PNG of an image's `most` commonest colours, others as the nearest of them: a third of the size."""
    colours, places, counts = np.unique(image.reshape(-1, 3), axis=0, return_inverse=True, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    alike, cells = np.unique(colours[order] >> 4, axis=0, return_index=True, return_inverse=True)[1:]
    often = np.argsort(-np.bincount(cells.ravel(), counts[order]))
    first = list(dict.fromkeys([*range(most // 4), *alike[often].tolist()]))[:most]  # tints of areas, then each hue
    kept = colours[order[first]].astype(int)
    nearest = np.array([((kept - colour) ** 2).sum(1).argmin() for colour in colours.astype(int)], np.uint8)
    height, width, _ = image.shape
    rows = np.pad(nearest[places.ravel()].reshape(height, width), ((0, 0), (1, 0)))  # 0 before a row: it has no filter
    parts = {
        b"IHDR": struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0),
        b"PLTE": kept.astype(np.uint8).tobytes(),
        b"IDAT": zlib.compress(rows.tobytes(), 9),
        b"IEND": b"",
    }
    chunks = (
        struct.pack(">I", len(x)) + kind + x + struct.pack(">I", zlib.crc32(kind + x)) for kind, x in parts.items()
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def main(picture: Path = PICTURE) -> None:
    """Draw the picture."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "picture.html")
        page.write_text(first_view(), encoding="utf-8")
        if not screenshot(page, picture, width=1280, height=980):
            sys.exit(f"{picture} was not drawn: it needs Chromium")
    picture.write_bytes(with_palette(pixels(picture.read_bytes())))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
