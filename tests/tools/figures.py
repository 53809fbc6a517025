"""Dump every figure and verdict of a report, and compare two dumps: what a change of the code changed on the pages.

    python tests/tools/figures.py dump runs/report before.json
    python tests/tools/figures.py compare before.json after.json

Numbers are rounded to nine digits. Figures are told apart by notebook and title; figures that exist on one side only,
and each difference of traces, axes or verdicts, are one line each.
"""

import base64
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

MIME = "application/vnd.plotly.v1+json"
VALUES = ("x", "y", "z", "text", "header.values", "cells.values", "error_x", "error_y")


def dump(report: Path) -> dict[str, Any]:
    """Return {"figures": {notebook: [figure]}, "verdicts": {item: verdict}} of a report's executed notebooks."""
    figures = {path.parent.name: list(_figures(path)) for path in sorted(report.glob("*/*.ipynb"))}
    tables = (report / "13_papers" / f"{name}.parquet" for name in ("claims", "items"))  # today's name, and before
    judged = next((pd.read_parquet(path).to_dict("records") for path in tables if path.is_file()), [])
    verdicts = {str(row.get("id", row.get("key"))): row.get("verdict") for row in judged}
    return {"figures": figures, "verdicts": verdicts}


def _figures(path: Path) -> Any:
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        for output in cell.get("outputs", []):
            figure = output.get("data", {}).get(MIME)
            if figure:
                yield _figure(figure)


def _figure(figure: dict[str, Any]) -> dict[str, Any]:
    layout = figure["layout"]
    texts = [note.get("text", "") for note in layout.get("annotations", [])]
    title = next((text[3:-4] for text in texts if text.startswith("<b>") and text.endswith("</b>")), "")
    axes = {
        name: (axis.get("title") or {}).get("text", "")
        for name, axis in sorted(layout.items())
        if re.fullmatch(r"[xy]axis\d*", name)
    }
    return {"title": title, "axes": axes, "traces": [_trace(trace) for trace in figure["data"]]}


def _trace(trace: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"type": trace.get("type", "scatter"), "name": trace.get("name", "")}
    for name in VALUES:
        value: Any = trace
        for part in name.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if value is not None:
            found[name] = _rounded(value)
    return found


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        if "bdata" in value:
            numbers = np.frombuffer(base64.b64decode(value["bdata"]), np.dtype(value["dtype"]))
            return _rounded(numbers.tolist())
        return {key: _rounded(value[key]) for key in ("array", "arrayminus") if key in value}
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    return float(f"{value:.9g}") if isinstance(value, float) else value


def compare(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return a line a difference."""
    found = []
    for notebook in sorted({*before["figures"], *after["figures"]}):
        one, other = (_by_title(side["figures"].get(notebook, [])) for side in (before, after))
        found += [f"{notebook}: gone: {title}" for title in one if title not in other]
        found += [f"{notebook}: new: {title}" for title in other if title not in one]
        for title in (title for title in one if title in other):
            found += [f"{notebook}: {title}: {line}" for line in _differences(one[title], other[title])]
    one, other = before["verdicts"], after["verdicts"]
    changed = [key for key in one | other if one.get(key) != other.get(key)]
    return found + [f"verdict {key}: {one.get(key)} -> {other.get(key)}" for key in changed]


def _by_title(figures: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    named: dict[str, dict[str, Any]] = {}
    for figure in figures:
        number = sum(title.partition(" #")[0] == figure["title"] for title in named)
        named[figure["title"] + (f" #{number + 1}" if number else "")] = figure
    return named


def _differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    lines = [] if one["axes"] == other["axes"] else [f"axes {one['axes']} -> {other['axes']}"]
    if len(one["traces"]) != len(other["traces"]):
        return [*lines, f"{len(one['traces'])} traces -> {len(other['traces'])}"]
    for a, b in zip(*(sorted(side["traces"], key=repr) for side in (one, other)), strict=True):
        changed = [key for key in a | b if a.get(key) != b.get(key)]
        lines += [f"trace {a['name']!r}: {', '.join(changed)}"] if changed else []
    return lines


if __name__ == "__main__":
    action, first, second = sys.argv[1:]
    if action == "dump":
        Path(second).write_text(json.dumps(dump(Path(first))), encoding="utf-8")
    else:
        sides = [json.loads(Path(path).read_text(encoding="utf-8")) for path in (first, second)]
        print("\n".join(compare(*sides)) or "no difference")
