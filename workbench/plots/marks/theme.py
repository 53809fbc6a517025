"""Common style of all figures: template, colours, and the frame of title, notice and caption."""

import re
from collections.abc import Iterable, Mapping
from math import ceil, floor, inf, log10
from textwrap import wrap
from typing import Any, NotRequired, TypedDict
from zlib import crc32

import plotly.graph_objects as go

HERE = "here"  # source of numbers that a running notebook measures or computes
WIDTH = 900  # px; fixed, so that label layout is the same everywhere
INK, MUTED, FAINT, RULE, PAPER = "#1b1e23", "#5a6068", "#eceef1", "#d5d9de", "#ffffff"
FRAME, TITLE_HEIGHT = ("title", "notice", "caption"), 50  # names of a figure's texts; px
NARROW_PAGE, GAP = 0.8, 12  # minimum width of a figure on a page, in WIDTH; px between tick labels
LETTER, SMALLEST = 0.6, 11  # average width of a character in em; px of the smallest text
FONT = "Inter, 'Open Sans', 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif"

# Okabe and Ito's colours, distinguishable with the common colour-vision deficiencies; darkened where they carry text.
BLUE, ORANGE, GREEN, RED, PINK, SKY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9"
BLOCKS = (
    BLUE,
    ORANGE,
    GREEN,
    PINK,
    SKY,
    RED,
    "#6A51A3",
    "#D9C62E",
    "#743E3E",
    "#7FD6A8",
    "#8C6D31",
    "#A6CEE3",
)  # of blocks
QUESTION = INK
SEQUENTIAL = "YlGnBu"  # small values are near the background, in the dark theme too
SHADES = "Cividis"  # for lines: both ends contrast with the background
TRACK = "#b9c0c9"  # of sliders

_AXIS = {
    "gridcolor": FAINT,
    "linecolor": RULE,
    "zeroline": False,
    "ticks": "outside",
    "tickcolor": RULE,
    "ticklen": 4,
    "showline": True,
    "title": {"standoff": 8, "font": {"size": 12, "color": MUTED}},
    "tickfont": {"size": 12, "color": MUTED},
    "automargin": False,
}
TEMPLATE = go.layout.Template(
    layout={
        "font": {"family": FONT, "size": 12, "color": INK},
        "paper_bgcolor": PAPER,
        "plot_bgcolor": PAPER,
        "colorway": list(BLOCKS),
        "colorscale": {"sequential": SEQUENTIAL},
        "xaxis": _AXIS,
        "yaxis": _AXIS,
        "hoverlabel": {"font": {"family": FONT, "size": 12}, "align": "left"},
        "legend": {"orientation": "h", "x": 0, "xanchor": "left", "y": 1, "yanchor": "bottom", "font": {"size": 12}},
        "annotationdefaults": {"font": {"size": 12, "color": INK}, "showarrow": False},
        "modebar": {
            "bgcolor": "rgba(0,0,0,0)",
            "color": RULE,
            "activecolor": MUTED,
            "remove": ["sendChartToCloud"],  # no upload to a cloud
        },
    }
)

# On dark pages a figure's lightness is inverted: white becomes the grey of JupyterLab's dark theme; hues and contrast
# stay. Only figures on white paper are inverted.
TURNED = "invert(0.9444) hue-rotate(180deg) brightness(1.2)"  # the last one for yellow and brown lines
_FIGURE = ":is(.js-plotly-plot:has(.main-svg[style*='255, 255, 255']), .papers)"
_TURN = f"{{ filter: {TURNED}; }}"
_DARK = "body[data-jp-theme-light='false'], body.vscode-dark, body.dark, body.dark-theme, :root[data-theme='dark']"
# On pages narrower than a figure, the figure is scaled down to NARROW_PAGE; below that it scrolls. The tangent of an
# arc tangent divides two lengths. Left of a figure is its cell number.
SMALLER, BESIDE = 0.68, 84
_FIT = f"clamp({SMALLER}, tan(atan2(100cqw - var(--beside-figures, {BESIDE}px), {WIDTH}px)), 1)"
# Right-aligned table cells with several lines: plotly measures their width on the screen.
_BROKEN = ".js-plotly-plot .cell-text-holder:not([text-anchor], [transform^='translate(8,'])"
_NARROW = f""".jp-OutputArea:has(.js-plotly-plot) {{ container-type: inline-size; }}
@container (max-width: {WIDTH + BESIDE}px) {{
  .js-plotly-plot:has(> .plot-container) {{
    min-width: {WIDTH}px; transform: scale({_FIT}); transform-origin: 0 0; }}
  {_BROKEN} {{ transform-box: fill-box; translate: calc(({_FIT} - 1) * 100%) 0; }}
}}"""
# For a view without saved state, JupyterLab shows a bare text. The fallback output after it, hidden next to a live
# view, is shown instead.
_VIEW = ".jp-OutputArea-child:has(> .jp-OutputArea-output.jupyter-widgets{})"
_DEAD = f"{_VIEW.format('')}:not({_VIEW.format(' > *')})"
_STILL = ".jp-OutputArea-child .wb-static:not(:empty)"
_LOST = f""".jp-OutputArea-output.jupyter-widgets:not(:has(*)) {{ font-size: 0; }}
.jp-OutputArea-output.jupyter-widgets:not(:has(*))::before {{ font: 14px/1.5 system-ui, sans-serif;
  content: "This view was not saved. Run the notebook from its first cell to this one."; }}
{_VIEW.format(" > *")} + .jp-OutputArea-child:has(.wb-static) {{ display: none; }}
{_DEAD}:has(+ {_STILL}) {{ display: none; }}
{_DEAD} + {_STILL} {{ display: block; }}"""
STYLE = f"""
.modebar-btn--logo {{ display: none !important; }}
:is({_DARK}) {_FIGURE} {_TURN}
{_NARROW}
{_LOST}
"""
# In JupyterLab all open notebooks share one document, and each brings the style of its version: `@scope` gives a
# notebook's own style priority. Browsers without `@scope` read the first half.
OF_DAY = f"wb-style-{crc32(STYLE.encode()):08x}"
NOTEBOOK_STYLE = f"""<style class="{OF_DAY}">{STYLE}
@scope (.jp-Notebook:has(style.{OF_DAY})) {{ {STYLE} }}</style>"""
FOLLOWS_READER = f"@media (prefers-color-scheme: dark) {{ :root:not([data-theme='light']) {_FIGURE} {_TURN} }}\n"
PAGE_STYLE = f"{STYLE}\n:root {{ --beside-figures: 20px; }}\n{FOLLOWS_READER}"


class FigureTexts(TypedDict):
    """A figure's texts besides the title: `notice` (what to look at) and `caption` (how it was measured)."""

    notice: NotRequired[str]
    caption: str


class Texts(FigureTexts):
    """The texts of a figure."""

    title: str


def block_colour(block: int, blocks: int) -> str:
    """Return the colour of block number `block` of `blocks`; the last one is the question."""
    return QUESTION if block == blocks - 1 else BLOCKS[block % len(BLOCKS)]


def lighten(colour: str, strength: float = 0.4) -> str:
    """Mix `colour` (#rrggbb) with white; strength 1 leaves it unchanged."""
    parts = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(255 - strength * (255 - part)):02x}" for part in parts)


def mixed(colour: str, other: str, share: float) -> str:
    """Mix `share` of `other` into `colour` (#rrggbb)."""
    parts = ((int(colour[i : i + 2], 16), int(other[i : i + 2], 16)) for i in (1, 3, 5))
    return "#" + "".join(f"{round((1 - share) * one + share * two):02x}" for one, two in parts)


def clear(colour: str, opacity: float) -> str:
    """Return `colour` (#rrggbb) with this opacity, from 0 to 1."""
    return f"rgba({', '.join(str(int(colour[i : i + 2], 16)) for i in (1, 3, 5))}, {opacity})"


def finish(
    fig: go.Figure,
    *,
    title: str,
    notice: str = "",
    caption: str,
    height: int,
    above: int = 36,
    below: int = 56,
    left: int = 72,
    right: int = 24,
    legend: int | None = None,
) -> go.Figure:
    """Add a figure's title, notice (below it) and caption (at the bottom).

    `height`: px of the plot area. `above` and `below`: px reserved between plot area and texts for legends, menus,
    sliders and axis titles. `legend`: px between the plot area and a legend above it.
    """
    title, notice, caption = map(plain, (title, notice, caption))
    notice += "" if not notice or notice.endswith((".", "?", "!", ".”", "?”", "!”")) else "."
    noticed, measured = _lines(notice, WIDTH * 124 // 900), _lines(caption, WIDTH * 139 // 900)
    fig.update_layout(meta={"sources": [HERE]} if fig.layout.meta is None else fig.layout.meta)
    top = TITLE_HEIGHT + 18 * len(noticed) + above
    if legend is not None:
        fig.update_layout(legend=legend_over(height, legend))
    if fig.layout.legend.x is None:
        fig.update_layout(legend_x=(8 - left) / (WIDTH - left - right))  # aligned with the title
    bottom = below + 16 * len(measured) + 16
    margin = {"t": top, "b": bottom, "l": left, "r": right}
    fig.update_layout(template=TEMPLATE, width=WIDTH, height=height + top + bottom, margin=margin)
    frame = {"x": 0, "xref": "paper", "yref": "paper", "xanchor": "left", "xshift": 8 - left}
    for name, text, y, anchor, shift, size, colour in (
        ("title", f"<b>{title}</b>", 1, "bottom", top - 32, 17, INK),
        ("notice", "<br>".join(noticed), 1, "bottom", above + 6, 13, MUTED),
        ("caption", "<br>".join(measured), 0, "top", -below, 12, MUTED),
    ):
        place = {"y": y, "yanchor": anchor, "yshift": shift, "name": name, **frame}
        fig.add_annotation(text=text, showarrow=False, align="left", font={"size": size, "color": colour}, **place)
    return fig


def unframed(figure: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, Any]]:
    """Split plotly's JSON into {title, notice, caption}, each one line, and the plot without them.

    Pages write the texts themselves. A figure without these texts stays unchanged.
    """
    layout = dict(figure.get("layout", {}))
    notes = list(layout.get("annotations", []))
    texts = {note["name"]: note.get("text", "") for note in notes if note.get("name") in FRAME}
    if len(texts) < len(FRAME):
        return {}, dict(figure)
    lines = {name: text.count("<br>") + 1 if text else 0 for name, text in texts.items()}
    over, under = TITLE_HEIGHT + 18 * lines["notice"], 16 * lines["caption"] + 16
    margin = layout["margin"]
    layout["margin"] = {**margin, "t": margin["t"] - over, "b": margin["b"] - under}
    layout["height"] -= over + under
    layout["annotations"] = [note for note in notes if note.get("name") not in FRAME]
    said = {name: text.replace("<br>", " ").removeprefix("<b>").removesuffix("</b>") for name, text in texts.items()}
    return said, {**figure, "layout": layout}


def plain(text: str) -> str:
    """Escape all tags of a text except line breaks, superscripts and subscripts."""
    return re.sub(r"<(?!br>|/?su[bp]>)", "&lt;", text)


def escape_text(text: str) -> str:
    """Escape a user's text for plotly: tags and entities stay literal."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _lines(text: str, width: int) -> list[str]:
    return [line for part in text.split("<br>") for line in wrap(part, width, break_on_hyphens=False)]


GAP_OF_DECADES, GAP_OF_POWERS = 52, 34  # px of "1,000,000" and of "10⁻¹²" with margins


def log_ticks(values: Iterable[float], wide: float | None = None) -> dict[str, Any]:
    """Return the ticks of a logarithmic axis: powers of ten over three decades and more (1M, 10⁻⁶), else 1-2-5 steps.

    A horizontal axis of `wide` px has fewer if labels would touch. Large numbers within two decades get plotly's own
    steps.
    """
    positive = [value for value in values if value > 0] or [1.0]
    low, high = floor(log10(min(positive))), ceil(log10(max(positive)))
    if high > 6 and floor(log10(max(positive))) <= ceil(log10(min(positive))):
        return {"exponentformat": "SI"}
    if (high - low > 3 and (high > 6 or low < -3)) or high > 6:
        apart = 1 if wide is None else max(1, ceil(GAP_OF_POWERS * (high - low) / wide))
        if high > 14:  # plotly's own steps end at 10¹⁵
            return {"dtick": apart, "tickformat": "~s"}
        return {"dtick": apart, "exponentformat": "SI" if low >= 0 else "power"}
    decade = inf if wide is None else wide / max(0.1, log10(max(positive) / min(positive)))
    if high - low > 3:
        apart = max(1, ceil(GAP_OF_DECADES / decade))
        steps = [10.0**power for power in range(low, high + 1, apart)]
        return {"tickvals": steps, "ticktext": [_step(step) for step in steps]}
    longest = GAP + 12 * LETTER * max(len(_step(value)) for value in (10.0**low, 10.0**high))
    digits = (1, 2, 5) if decade * 0.3 > longest else (1, 3) if decade * 0.47 > longest else (1,)
    steps = [digit * 10.0**power for power in range(low, high + 1) for digit in digits]
    return {"tickvals": steps, "ticktext": [_step(step) for step in steps]}


def _step(value: float) -> str:
    return f"{value:,.3g}" if value < 1000 else f"{value:,.0f}"


def panel_titles(fig: go.Figure, size: int = 13, across: int = WIDTH - 100) -> None:
    """Left-align the panel titles of `make_subplots`; call before `finish`.

    If a title is wider than its panel, all get a smaller font; `across` is the width of all panels in px.
    """
    titled = list(zip(fig.layout.annotations, fig.select_xaxes(), strict=False))
    for note, axis in titled:
        low, high = axis.domain
        letters = max(map(len, re.sub(r"</?su[bp]>", "", note.text or "").split("<br>")))
        size = min(size, floor((high - low) * across / max(1, letters) / LETTER))
    for note, axis in titled:
        note.update(x=axis.domain[0], xanchor="left", font={"size": max(SMALLEST, size), "color": INK})


def legend_lines(names: Iterable[str]) -> int:
    """Return the number of lines of a legend with these names."""
    lines, used = 1, 0.0
    for name in names:
        width = 42 + 6.3 * len(name)  # px of a mark and of characters
        if used and used + width > WIDTH - 40:
            lines, used = lines + 1, 0.0
        used += width
    return lines


def legend_over(height: int, gap: int = 4, **more: Any) -> dict[str, Any]:
    """Return a legend `gap` px above a plot area of `height` px."""
    return {"y": 1 + gap / height, "yanchor": "bottom", **more}
