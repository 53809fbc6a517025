"""Figures as data and encodings: rows of a result table, and the columns for axes, lines, marks and panels.

    rows = results.scores(found.counts("trial"))
    chart.lines(rows, x="ratio", y="em", by="select", panel="data", look=SELECTORS.of, title="Quality by ratio")

Rows from several sources get different marks (or dashes) and the source's name in the legend. The caption states n,
seed, device and source, computed from the rows. Without rows there is no figure:
`chart.lines(...) or found.missing("trial")`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from textwrap import wrap
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from workbench.plots.marks.bars import Bars, Column, bar_chart, dots
from workbench.plots.marks.lines import Panel, Series, line_chart, panels_per_row
from workbench.plots.marks.styles import SeriesStyle, family_looks
from workbench.plots.marks.table import drawn_width
from workbench.plots.marks.table import table as text_table
from workbench.plots.marks.theme import BLOCKS, FAINT, HERE, NARROW_PAGE, WIDTH, log_ticks

DASHES = ("solid", "dash", "dot", "dashdot")  # by source, in order
LONG = 40  # characters of a row's name on one line
SYMBOLS = ("", "-open", "-dot", "-open-dot")  # symbol suffixes, by source
MANY_POINTS = 24  # points from which on a line has no marks
Style = Callable[[str], SeriesStyle]
Axis = str | Mapping[str, Any]  # a title, or plotly's settings


def measured_rows(records: pd.DataFrame | Iterable[Mapping[str, Any]], **columns: Any) -> pd.DataFrame:
    """Return values measured just now as rows to draw: `mean` is the value, `columns` are constant."""
    rows = pd.DataFrame(records if isinstance(records, pd.DataFrame) else list(records))
    return rows.rename(columns={"mean": "value"}).assign(source=HERE, **columns)


def lines(
    rows: pd.DataFrame,
    *,
    x: str,
    y: str = "value",
    by: str,
    title: str,
    panel: str = "",
    panels: Mapping[str, str | Mapping[str, Any]] | None = None,
    look: Style | None = None,
    x_axis: Axis = "",
    y_axis: Axis = "",
    x_log: bool = False,
    y_log: bool = False,
    percent: bool = False,
    hover: str = "",
    level: float | None = None,
    caption: str = "",
    **more: Any,
) -> go.Figure | None:
    """Draw `y` against `x`: one line per value of `by`, one panel per value of `panel`; None without rows.

    `{y}_low` and `{y}_high` (of "value": `low` and `high`, of "ms": `p5` and `p95`) are drawn as a band if the rows
    have them.

    panels      value of `panel` → its title, in the order drawn; others are dropped. Or {title, x, y_axis, …}, which
                override the figure's x, x_axis, y_axis, x_log, y_log, percent, level
    percent     `y` is a share
    hover       column with a point's hover text
    level       height of a dotted line
    more        as `plots.marks.lines.line_chart`: height, share, bars, mark, notice, …
    """
    given = {key: {"title": about} if isinstance(about, str) else dict(about) for key, about in (panels or {}).items()}
    shared: dict[str, Any] = {"x": x, "x_axis": x_axis, "y_axis": y_axis, "x_log": x_log, "y_log": y_log}
    shared |= {"percent": percent, "level": level}
    rows = rows.dropna(subset=[y] if any("x" in about for about in given.values()) else [x, y])
    if rows.empty:
        return None
    titles = rows[panel].astype(str) if panel and not panels else [""] * len(rows)
    titled = all(source in title for source, title in zip(rows.source, titles, strict=True))
    marked = rows.assign(source=HERE) if titled else rows  # the legend does not repeat sources that titles name
    drawn, found = [], _panels(marked, panel, {key: key for key in given})
    wide = (WIDTH - 96) * NARROW_PAGE * 0.7 / max(1, panels_per_row(len(found)))  # px of a panel on a narrow page
    together = pd.concat([part[y] for _, part in found]) if found and more.get("share") else None
    for name, part in found:
        own = {"title": str(name), **shared, **given.get(name, {})}
        part = part.dropna(subset=[own["x"]])
        if len(part):
            drawn.append(_panel(part, marked, y, by, look, hover, wide, together, **own))
    if not drawn:
        return None
    return _sourced(line_chart(drawn, **_texts(rows, title, caption, more), **more), rows)


def _panel(
    part: pd.DataFrame,
    rows: pd.DataFrame,
    y: str,
    by: str,
    look: Style | None,
    hover: str,
    wide: float,
    together: pd.Series | None,
    *,
    title: str,
    x: str,
    x_axis: Axis,
    y_axis: Axis,
    x_log: bool,
    y_log: bool,
    percent: bool,
    level: float | None,
) -> Panel:
    """Return the panel of some rows; `together`: the values of all panels, if they share an axis."""
    series = [_series(own, label, style, x, y, hover, percent) for label, style, own in _groups(part, rows, by, look)]
    horizontal = {**_axis(x_axis or x), **({"type": "log", **log_ticks(part[x], wide)} if x_log else {})}
    vertical = {**_axis(y_axis or y), **({"tickformat": ".1~%"} if percent else {})}
    vertical |= {"type": "log", **log_ticks(part[y] if together is None else together)} if y_log else {}
    return Panel(title, series, horizontal, vertical, level)


def dot_plot(
    rows: pd.DataFrame,
    *,
    y: str,
    title: str,
    x: str = "value",
    by: str = "",
    panel: str = "",
    panels: Mapping[str, Mapping[str, Any]] | None = None,
    look: Style | None = None,
    axis: str = "",
    percent: bool = False,
    whole: bool = False,
    level: float | None = None,
    caption: str = "",
    **more: Any,
) -> go.Figure | None:
    """Draw one row per value of `y`, with one mark and interval per value of `by`; None without rows.

    whole    the axis is a share from 0 to 100%
    panels   value of `panel` → {title, axis, percent, level, log, whole} of `plots.marks.bars.Column`, in the order
             drawn
    more     as `plots.marks.bars.dots`: spread, lines, notice
    """
    rows = rows.dropna(subset=[x]).reset_index(drop=True)
    if rows.empty:
        return None
    more.setdefault("named", bool(by) or rows.source.nunique() > 1)  # a single source is named in the caption
    by = by or "source"
    rows = rows.assign(**{by: rows[by].astype(object).where(rows[by].notna(), "–")})
    groups = _groups(rows, rows, by, look)
    looks = {label: replace(style, name=label) for label, style, _ in groups}
    marked = pd.concat([own.assign(series=label) for label, _, own in groups]).loc[rows.index]
    low, high = (rows[end].fillna(rows[x]) if end in rows else rows[x] for end in _ends(x))
    marked = marked.assign(name=rows[y].astype(str), mean=rows[x], low=low, high=high)
    columns = []
    for name, part in _panels(marked, panel, {key: key for key in panels} if panels else None):
        common = {"title": name, "axis": axis, "percent": percent, "level": level, "whole": whole}
        about = dict((panels or {}).get(name, common))
        columns.append(Column(rows=part.to_dict("records"), **{"title": name, "axis": axis, **about}))
    if not columns:
        return None
    more.setdefault("spread", len(looks) > 1)
    return _sourced(dots(columns, looks, **_texts(rows, title, caption, more), **more), rows)


def bars(
    rows: pd.DataFrame,
    *,
    y: str,
    title: str,
    x: str = "value",
    by: str = "",
    look: Style | None = None,
    axis: Axis = "",
    form: str = ".3g",
    caption: str = "",
    mode: str = "stack",
    **more: Any,
) -> go.Figure | None:
    """Draw one horizontal bar per value of `y`, stacked (`mode`) from one part per value of `by`; None without rows."""
    rows = rows.dropna(subset=[x])
    if rows.empty:
        return None
    by = by or "source"
    rows = rows.assign(**{y: rows[y].astype(str).map(_two_lines)})
    names = list(dict.fromkeys(rows[y]))
    longest = max(drawn_width(line, 12) for name in names for line in name.split("<br>"))
    drawn = [
        Bars(label, style.colour, list(own[y]), list(own[x]), f"<b>%{{y}}</b><br>{label}: %{{x:{form}}}<extra></extra>")
        for label, style, own in _groups(rows, rows, by, look)
    ]
    settings = {"height": 30 * len(names) + 16, "left": 30 + round(longest)} | more
    vertical = {"categoryorder": "array", "categoryarray": names[::-1], "ticks": "", "showgrid": False}
    texts = _texts(rows, title, caption, settings)
    return _sourced(
        bar_chart(drawn, mode=mode, x={"gridcolor": FAINT, **_axis(axis or x)}, y=vertical, **texts, **settings),
        rows,
    )


def table(
    rows: pd.DataFrame,
    columns: Mapping[str, str],
    *,
    title: str,
    form: Mapping[str, str | Callable[[Any], str]] | None = None,
    group: str = "",
    caption: str = "",
    **more: Any,
) -> go.Figure | None:
    """Draw a table: `columns` column → its heading; None without rows.

    form    column → format ("{:.1%}", ".1%") or function; the default is three digits. A column with `{name}_low` and
            `{name}_high` shows its interval too
    group   column whose values are headings of groups of rows
    """
    if rows.empty:
        return None
    if rows.source.nunique() > 1 and "source" not in columns:
        columns = {**columns, "source": "source"}
    body: list[list[str]] = []
    groups: list[int] = []
    last: Any = None
    for row in rows.to_dict("records"):
        if group and row[group] != last:
            groups.append(len(body))
            body.append([str(row[group]), *[""] * (len(columns) - 1)])
            last = row[group]
        body.append([_cell(row, name, (form or {}).get(name)) for name in columns])
    return _sourced(
        text_table(list(columns.values()), body, groups=groups, **_texts(rows, title, caption, more), **more), rows
    )


def describe_rows(rows: pd.DataFrame) -> str:
    """Return the rows' model, data, training run, n, seed, device and source as text."""
    parts = []
    for names, words in ((("model", "data"), "{} on {}"), (("n",), "n = {}")):
        if set(names) <= set(rows):
            values = [_few(rows[name], MANY.get(name, "")) for name in names]
            parts += [words.format(*values)] if all(values) else []
    if "training_seed" in rows and (runs := sorted(map(int, rows.training_seed.dropna().unique()))):
        parts.insert(1, f"training run{'s' if len(runs) > 1 else ''} {_listed(runs)}")
    if "seed" in rows and (seeds := sorted(map(int, rows.seed.dropna().unique()))) and len(seeds) <= MOST_SEEDS:
        parts.append(f"seed{'s' if len(seeds) > 1 else ''} {_listed(seeds)}")
    if "device" in rows and (text := _few(rows.device, "devices")):
        devices = rows.device[rows.device.fillna("") != ""].nunique()
        parts.append(text if devices < 3 else f"several devices ({devices})")
    if "source" in rows and (text := _few(rows.source, "sources")):
        parts.append(f"source: {text}")
    said = ", ".join(parts) + "." if parts else ""
    return said[0].upper() + said[1:] if said.startswith(("source", "seed", "several")) else said


MANY = {"model": "models", "data": "data sets"}
MOST_SEEDS = 4  # listed in a caption; more are omitted


def _few(values: pd.Series, many: str = "kinds") -> str:
    """Format the distinct values of a column: a few in full, the count of many, a range of numbers."""
    known = list(dict.fromkeys(value for value in values if value is not None and value == value and value != ""))
    if known and all(isinstance(value, int | float) for value in known):
        low, high = min(known), max(known)
        return f"{low:,.0f}" if low == high else f"{low:,.0f} to {high:,.0f}"
    if len(known) > 4:
        return f"{len(known)} {many}"
    return _listed(known)


def _listed(known: Sequence[Any]) -> str:
    """Format a list: a, b and c."""
    *before, last = map(str, known or [""])
    return " and ".join([", ".join(before)] * bool(before) + [last])


def _panels(rows: pd.DataFrame, panel: str, panels: Mapping[str, str] | None) -> list[tuple[str, pd.DataFrame]]:
    if rows.empty:
        return []
    if not panel:
        return [("", rows)]
    names = panels or {name: str(name) for name in dict.fromkeys(rows[panel])}
    return [(title, part) for name, title in names.items() if len(part := rows[rows[panel] == name])]


def _groups(
    part: pd.DataFrame, rows: pd.DataFrame, by: str, look: Style | None
) -> list[tuple[str, SeriesStyle, pd.DataFrame]]:
    """Return (label, style, rows) of every series of a panel: one value of `by` from one source."""
    sources, values = list(dict.fromkeys(rows.source)), list(dict.fromkeys(rows[by]))
    plain = ((value, SeriesStyle(BLOCKS[at % len(BLOCKS)], name=str(value))) for at, value in enumerate(values))
    looks = family_looks(((value, look(value)) for value in values) if look else plain)
    found = []
    for (value, source), own in part.groupby([by, "source"], sort=False):
        number = sources.index(source)
        style = looks[value]
        name = style.name or str(value)
        label = f"{name} · {source}" if len(sources) > 1 and by != "source" else name
        if number:
            symbol = style.symbol.removesuffix("-open") + SYMBOLS[number % len(SYMBOLS)]
            style = replace(style, dash=DASHES[number % len(DASHES)], symbol=symbol)
        found.append((label, style, own))
    return found


def _series(own: pd.DataFrame, label: str, style: SeriesStyle, x: str, y: str, hover: str, percent: bool) -> Series:
    own = own.sort_values(x, kind="stable")
    low, high = _ends(y)
    ends = low in own and own[low].notna().all() and own[high].notna().all()
    form = ":.1%" if percent else ":.3g"
    text = f"%{{customdata[0]}}{'<br>' if hover else ''}%{{x:,}}: %{{y{form}}}"
    spread = "95% interval" if "p5" not in own else "spread of the runs"  # of timings
    text += f"<br>{spread} %{{customdata[1]{form}}} to %{{customdata[2]{form}}}" if ends else ""
    columns = [own[hover] if hover else pd.Series("", own.index), *([own[low], own[high]] if ends else [])]
    data = pd.concat(columns, axis=1).to_numpy().tolist()
    bottom, top = (list(own[low]), list(own[high])) if ends else ((), ())
    mode = "markers" if len(own) == 1 else "lines+markers" if len(own) <= MANY_POINTS else "lines"
    return Series(label, list(own[x]), list(own[y]), bottom, top, text, data, style, mode=mode)


def _ends(name: str) -> tuple[str, str]:
    if name == "ms":
        return "p5", "p95"
    return ("low", "high") if name == "value" else (f"{name}_low", f"{name}_high")


def _axis(axis: Axis) -> dict[str, Any]:
    return {"title_text": axis} if isinstance(axis, str) else dict(axis)


def _two_lines(name: str) -> str:
    """Break a long row name into two lines, after its first part or in the middle."""
    if len(name) <= LONG:
        return name
    first, mark, rest = name.partition(" · ")
    return f"{first}<br>{rest}" if mark else "<br>".join(wrap(name, -(-len(name) // 2) + 6))


def _texts(rows: pd.DataFrame, title: str, caption: str, more: dict[str, Any]) -> dict[str, Any]:
    return {"title": title, "notice": more.pop("notice", ""), "caption": f"{caption} {describe_rows(rows)}".strip()}


def _cell(row: Mapping[str, Any], name: str, form: str | Callable[[Any], str] | None) -> str:
    value = row[name]
    if value is None or value != value or value == "":
        return "–"
    if callable(form):
        return form(value)
    if isinstance(value, str):
        return value
    written = (form or ".3g").strip("{:}")
    low, high = (row.get(end) for end in _ends(name))
    ends = f" ({low:{written}} to {high:{written}})" if low is not None and low == low else ""
    return f"{value:{written}}{ends}"


def _sourced(fig: go.Figure, rows: pd.DataFrame) -> go.Figure:
    """Record the sources of the figure's numbers in it."""
    return fig.update_layout(meta={"sources": list(dict.fromkeys(rows.source))})
