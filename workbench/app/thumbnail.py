"""A small picture of a figure: a headless Chromium draws it where there is one; else it is a sketch in SVG."""

import base64
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from plotly.offline import get_plotlyjs

from workbench.app.html import script_json

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
WIDTH, HEIGHT = 900, 600
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --hide-scrollbars --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync --virtual-time-budget=5000 "
    "--use-gl=angle --use-angle=swiftshader --enable-unsafe-swiftshader"  # these three draw WebGL in software
)
COLOURS = ("#4c72b0", "#dd8452", "#55a868", "#c44e52", "#8172b3", "#937860")

PAGE = """<!doctype html><meta charset="utf-8"><style>body {{ margin: 0; }}</style><script>{plotly}</script>
<div id="f"></div><script>const figure = {figure};
figure.layout = {{...figure.layout, width: {width}, height: {height}, autosize: false}};
figure.config = {{staticPlot: true}}; Plotly.newPlot("f", figure);</script>"""


def chromium() -> str | None:
    """Return the path of a Chromium on this machine ($CHROMIUM first), or None."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)


def write(figure: dict[str, Any] | None, folder: Path) -> Path:
    """Write `thumbnail.png`, or `thumbnail.svg` when no browser can draw it, into `folder`."""
    if figure and _drawn(figure, folder / "thumbnail.png"):
        return folder / "thumbnail.png"
    sketch = folder / "thumbnail.svg"
    sketch.write_text(svg(figure or {}), encoding="utf-8")
    return sketch


def _drawn(figure: dict[str, Any], picture: Path) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "figure.html")
        layout = figure.get("layout", {})  # a figure that says how large it is was laid out for that size
        width, height = int(layout.get("width") or WIDTH), int(layout.get("height") or HEIGHT)
        text = PAGE.format(plotly=get_plotlyjs(), figure=script_json(figure), width=width, height=height)
        page.write_text(text, encoding="utf-8")
        return screenshot(page, picture, width, max(height, 2 * width // 3))  # the index shows the top, 3 to 2


def screenshot(page: Path, picture: Path, width: int, height: int) -> bool:
    """Draw the top of an HTML file, `width` x `height` px, with Chromium; return whether it was drawn."""
    browser = chromium()
    if browser is None:
        return False
    with tempfile.TemporaryDirectory() as profile:
        own = [f"--user-data-dir={profile}", f"--window-size={width},{height}", f"--screenshot={picture.resolve()}"]
        command = [browser, *FLAGS.split(), *own, page.resolve().as_uri()]
        try:
            done = subprocess.run(command, capture_output=True, timeout=60, stdin=subprocess.DEVNULL)
        except (OSError, subprocess.TimeoutExpired):
            return False
        return done.returncode == 0 and picture.exists()


def svg(figure: dict[str, Any]) -> str:
    """Sketch the first heatmap as a grid of squares, else lines and bars; axes and text are left out."""
    traces = figure.get("data", [])
    maps = [trace for trace in traces if trace.get("type") in ("heatmap", "image", "heatmapgl")]
    shapes = _grid(maps[0]) if maps else _curves(traces)
    body = "".join(shapes) or f'<circle cx="{WIDTH / 2}" cy="{HEIGHT / 2}" r="60" fill="#8884"/>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}">{body}</svg>\n'


def _numbers(values: Any) -> np.ndarray:
    """Read a plotly array: a list, or {dtype, bdata, shape} with base64 bytes. Texts become their position."""
    if isinstance(values, dict):
        flat = np.frombuffer(base64.b64decode(values["bdata"]), dtype=values["dtype"])
        shape = str(values["shape"]).split(",") if "shape" in values else [len(flat)]
        return flat.reshape([int(side) for side in shape]).astype(float)
    try:
        return np.array(values, dtype=float)
    except (TypeError, ValueError):
        return np.arange(len(values), dtype=float)


def _grid(trace: dict[str, Any], most: int = 48) -> Iterator[str]:
    z = _numbers(trace.get("z", []))
    z = z.mean(-1) if z.ndim == 3 else z
    if z.ndim != 2 or not z.size:
        return
    seen = np.isfinite(z)
    if not seen.any():
        return
    rows, columns = (np.array_split(np.arange(side), min(side, most)) for side in z.shape)
    cuts = [[np.ix_(i, j) for j in columns] for i in rows]
    small = np.array([[z[cut][seen[cut]].mean() if seen[cut].any() else np.nan for cut in row] for row in cuts])
    low, high = np.nanmin(small), np.nanmax(small)
    wide, tall = WIDTH / len(columns), HEIGHT / len(rows)
    for i, j in np.argwhere(np.isfinite(small)):
        share = (small[i, j] - low) / ((high - low) or 1)
        place = f'x="{j * wide:.1f}" y="{i * tall:.1f}" width="{wide + 0.5:.1f}" height="{tall + 0.5:.1f}"'
        yield f'<rect {place} fill="#2a6f97" fill-opacity="{0.06 + 0.94 * share:.2f}"/>'


def _curves(traces: list[dict[str, Any]]) -> Iterator[str]:
    drawn = []
    for trace in traces:
        y = _numbers(trace.get("y", []))
        x = _numbers(trace["x"]) if trace.get("x") is not None else np.arange(len(y), dtype=float)
        fine = np.isfinite(x[: len(y)]) & np.isfinite(y[: len(x)])
        if fine.any():
            drawn.append((trace.get("type", "scatter"), x[: len(y)][fine], y[: len(x)][fine]))
    if not drawn:
        return
    xs, ys = np.concatenate([x for _, x, _ in drawn]), np.concatenate([y for _, _, y in drawn])
    left, wide = xs.min(), np.ptp(xs) or 1
    low, tall = min(ys.min(), 0), (ys.max() - min(ys.min(), 0)) or 1
    for number, (kind, x, y) in enumerate(drawn):
        colour = COLOURS[number % len(COLOURS)]
        across, down = 50 + (WIDTH - 100) * (x - left) / wide, HEIGHT - 40 - (HEIGHT - 80) * (y - low) / tall
        if kind == "bar":
            side = 0.7 * (WIDTH - 100) / max(len(x), 1) / len(drawn)
            for a, b in zip(across + number * side, down, strict=True):
                size = f'width="{side:.1f}" height="{HEIGHT - 40 - b:.1f}"'
                yield f'<rect x="{a:.1f}" y="{b:.1f}" {size} fill="{colour}"/>'
        else:
            points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(across, down, strict=True))
            yield f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="5"/>'
