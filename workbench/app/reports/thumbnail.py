"""A notebook's picture in a report's index: its main figure as plotly's JSON, drawn by the reader's browser.

This needs no browser on the machine that makes the report. A notebook without a figure shows its first image, else the
start of its first text. Screenshots for `make picture` and the tests use a headless Chromium.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import nbformat

from workbench.app.reports.html import figures, script_json
from workbench.core.utils.files import write_text
from workbench.plots.marks import theme

FILE = "picture.js"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --hide-scrollbars --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync --virtual-time-budget=5000 "
    "--use-gl=angle --use-angle=swiftshader --enable-unsafe-swiftshader"  # these three draw WebGL in software
)
IMAGES = ("image/png", "image/jpeg")
LINES, COLUMNS = 24, 90  # of a text shown as a picture
WORDS, NAMES = 60, 16  # maximum texts in a small picture, and names along an axis: more would overlap
SIZE, LETTERS = (380, 240), 22  # px of a small picture; characters of a name in it
BROKEN = 8  # maximum names along an axis that may have two lines
MARGIN = {"l": 34, "r": 10, "t": 12, "b": 26}
KEPT = ("template", "plot_bgcolor", "paper_bgcolor", "coloraxis", "barmode", "bargap", "bargroupgap", "shapes")
HOVER = ("customdata", "hovertext", "hovertemplate", "hoverinfo", "ids", "meta")


def write(executed: Path, folder: Path) -> Path:
    """Write an executed notebook's picture into `folder`, as a call of the index page's `picture`."""
    file = folder / FILE
    write_text(file, f"picture({script_json(folder.name)}, {script_json(picture(executed))});\n")
    return file


def picture(executed: Path) -> dict[str, Any]:
    """Return a notebook's picture: {"figure": plotly JSON}, {"image": data URI}, {"text": …} or {}."""
    drawn = [without_interaction(figure) for figure in figures(executed)]
    if figure := next((each for each in drawn if not _is_text(each)), next(iter(drawn), None)):
        return {"figure": shrink_figure(figure)}
    outputs = list(_outputs(executed))
    for data in outputs:
        for kind in IMAGES:
            if kind in data:
                return {"image": f"data:{kind};base64,{''.join(data[kind].split())}"}
    texts = (data.get("text/plain", "").strip() for data in outputs if "text/markdown" not in data)
    lines = next(filter(None, texts), "").splitlines()[:LINES]
    return {"text": "\n".join(line[:COLUMNS] for line in lines)} if lines else {}


def _outputs(executed: Path) -> Iterator[Mapping[str, Any]]:
    for cell in nbformat.read(executed, as_version=4).cells:
        for output in cell.get("outputs", []):
            yield output.get("data", {})


def without_interaction(figure: Mapping[str, Any]) -> dict[str, Any]:
    """Return a figure without its interactive parts: hover texts, frames, hidden traces, actions."""
    layout = {key: value for key, value in figure.get("layout", {}).items() if key != "hoverlabel"}
    for name, parts in (("sliders", "steps"), ("updatemenus", "buttons")):
        if name in layout:
            layout[name] = [{**each, parts: [_label(part) for part in each.get(parts, [])]} for each in layout[name]]
    return {"data": [_seen(trace) for trace in figure.get("data", [])], "layout": layout}


def shrink_figure(figure: Mapping[str, Any]) -> dict[str, Any]:
    """Return a still figure as a small picture: its first panel (two for maps), at the picture's size.

    Title, legend and controls are dropped, axis titles kept, long names shortened. Tables stay unchanged.
    """
    _, plot = theme.unframed(figure)
    shown = [trace for trace in plot["data"] if trace.get("visible") is not False]
    if not shown or any(trace.get("type") == "table" for trace in shown):
        return dict(figure)
    panels = list(dict.fromkeys((trace.get("xaxis", "x"), trace.get("yaxis", "y")) for trace in shown))
    drawn = [trace for trace in shown if trace.get("x") != [None]]  # without entries of the legend
    panels = panels[: 2 if all(trace.get("type") == "heatmap" for trace in drawn) else 1]
    names = {name for panel in panels for name in panel}
    layout = {key: value for key, value in plot["layout"].items() if key in KEPT or _axis(key) in names}
    shapes = [each for each in layout.get("shapes", []) if {each.get(f"{x}ref", "").split()[0] for x in "xy"} <= names]
    layout |= {"shapes": shapes, "width": SIZE[0], "height": SIZE[1], "margin": MARGIN, "showlegend": False}
    if "coloraxis" in layout:
        layout["coloraxis"] = {**layout["coloraxis"], "showscale": False}
    for at, (x, y) in enumerate(panels):
        span = [(at + 0.06 * (at > 0)) / len(panels), (at + 1) / len(panels)]
        for name, domain in ((x, span), (y, [0, 1])):
            key = f"{name[0]}axis{name[1:]}"
            layout[key] = _small_axis(layout.get(key, {}), domain, shown, name[0], is_first=at == 0)
    return {
        "data": [trace for trace in shown if (trace.get("xaxis", "x"), trace.get("yaxis", "y")) in panels],
        "layout": layout,
    }


def _axis(key: str) -> str:
    """Return an axis's name as used in traces: `xaxis2` → x2; "" for other layout keys."""
    return key.replace("axis", "") if key[1:5] == "axis" else ""


def _small_axis(
    axis: Mapping[str, Any], domain: Sequence[float], traces: Sequence[Mapping[str, Any]], side: str, is_first: bool
) -> dict[str, Any]:
    """Return a small picture's axis: small title, short names, few ticks."""
    kept = {key: value for key, value in axis.items() if key not in ("title", "matches", "anchor", "showticklabels")}
    texts = [*axis.get("ticktext", []), *axis.get("categoryarray", [])]
    texts += [text for trace in traces for text in trace.get(side) or [] if isinstance(trace.get(side), list)]
    names = {text for text in texts if isinstance(text, str)}
    each = {"dtick": 1} if 0 < len(names) <= NAMES else {}  # every row is named
    broken = len(names) <= BROKEN
    long = {text: short for text in names if (short := _shorten(text, broken)) != text}
    if isinstance(kept.get("ticktext"), list):
        kept["ticktext"] = [long.get(text, text) for text in kept["ticktext"]]
    anchor = {"anchor": "free", "position": domain[0]} if side == "y" else {}
    shown = is_first or side == "x"
    title = {"text": (axis.get("title") or {}).get("text", "") if shown else "", "font": {"size": 11}, "standoff": 3}
    return {
        **kept,
        **anchor,
        "domain": domain,
        "title": title,
        "labelalias": long,
        "nticks": 4,
        **each,
        "automargin": True,
        "showticklabels": shown and len(kept.get("ticktext") or ()) <= NAMES,
    }


def _shorten(text: str, broken: bool) -> str:
    """Shorten each line of a name; a name with a bracket may be `broken` before it."""
    lines = (text.replace(" (", "<br>(") if broken and len(text) > LETTERS else text).split("<br>")
    return "<br>".join(line if len(line) <= LETTERS else f"{line[: LETTERS - 1]}…" for line in lines)


def _label(part: Mapping[str, Any]) -> dict[str, Any]:
    """Return a slider step or menu button without an action."""
    return {"label": part.get("label", ""), "method": "skip"}


def _seen(trace: Mapping[str, Any]) -> dict[str, Any]:
    """Return a trace without hover texts, and SVG instead of WebGL, whose contexts are limited per page.

    A hidden trace keeps its place, as colours depend on it.
    """
    kind = trace.get("type", "scatter")
    if trace.get("visible") is False:
        return {"type": kind, "visible": False}
    dropped = {*HOVER, *(["text"] if not _writes(trace) else [])}
    return {**{key: value for key, value in trace.items() if key not in dropped}, "type": kind.removesuffix("gl")}


def _is_text(figure: Mapping[str, Any]) -> bool:
    """Return whether a figure is mainly text, too much for a small picture."""
    return sum(len(trace.get("text", ())) for trace in figure["data"] if trace.get("mode") == "text") > WORDS


def _writes(trace: Mapping[str, Any]) -> bool:
    """Return whether a trace draws its texts."""
    if trace.get("texttemplate"):
        return True
    if trace.get("type", "scatter") in ("scatter", "scattergl"):
        return "text" in trace.get("mode", "")
    return not trace.get("type", "").startswith("heatmap")


def chromium() -> str | None:
    """Return the path of a Chromium on this machine ($CHROMIUM first), or None."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)


def screenshot(page: Path, target: Path, width: int, height: int) -> bool:
    """Draw the top of an HTML file, `width` x `height` px, with Chromium; return whether it was drawn."""
    browser = chromium()
    if browser is None:
        return False
    with tempfile.TemporaryDirectory() as profile:
        own = [f"--user-data-dir={profile}", f"--window-size={width},{height}", f"--screenshot={target.resolve()}"]
        command = [browser, *FLAGS.split(), *own, page.resolve().as_uri()]
        try:
            done = subprocess.run(command, capture_output=True, timeout=60, stdin=subprocess.DEVNULL)
        except (OSError, subprocess.TimeoutExpired):
            return False
        return done.returncode == 0 and target.exists()
