"""The prompt editor as HTML: the widget's script over precomputed results.

The page needs neither network nor kernel. Prompt and answer texts are inserted as text only.
"""

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

MIME = "application/vnd.workbench.prompt.v1+json"
HERE = Path(__file__).parent
PARTS = ("tokens", "columns", "maps", "prompt_widget")  # script files, in order
STANDS = '<div id="{name}"></div><style>{css}</style>\n<script type="module">{script}\n{call}</script>'
PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>Interactive prompt editor</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline';
script-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'">
<style>:root {{ color-scheme: light dark; }} body {{ margin: 0 auto; max-width: 1320px; background: Canvas; }}</style>
</head><body>{body}</body></html>
"""


def page(data: dict[str, Any]) -> str:
    """Return a complete page for the data of a `PromptPage`."""
    return PAGE.format(body=body(data))


def body(data: dict[str, Any], name: str = "prompt") -> str:
    """Return the HTML that draws a page's data, with script and style."""
    code = script(*PARTS, "page_model").replace("export default", "const widget =")
    call = f"const data = {_script_json(data)}, el = document.getElementById({json.dumps(name)});\n"
    call += "widget.render({ model: pageModel(data, el.id), el });"
    css = (HERE / "prompt_widget.css").read_text(encoding="utf-8")
    return STANDS.format(name=escape(name), css=css, script=code, call=call)


def script(*parts: str) -> str:
    """Return the script of the editor."""
    return "\n".join((HERE / f"{part}.js").read_text(encoding="utf-8") for part in parts)


def summary(record: dict[str, Any], names: Sequence[str]) -> str:
    """Return the answers and the text as HTML without scripts.

    `names`: of the chosen method, then of the compared ones.
    """
    answers, bill = record["answers"], record["bill"]
    rows = [("full attention", answers.get("full"), bill.get("length"), answers.get("seconds_full"))]
    for name, one, took in zip(
        names, (answers, *answers.get("beside", ())), (bill, *bill.get("beside", ())), strict=True
    ):
        if one and took:
            rows.append((name, one.get("method"), took["computed"], took["seconds"]["method"]))
    said = "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(one['text'])}</td><td>{_sign(one['right'])}</td>"
        f"<td>{computed} of {bill['length']} tokens computed</td><td>TTFT {_milliseconds(seconds)}</td></tr>"
        for name, one, computed, seconds in rows
        if one
    )
    text = "".join(f"<p>{escape(''.join(block['tokens']))}</p>" for block in record["text"].get("blocks", []))
    return f"<table>{said}</table><details><summary>The prompt</summary>{text}</details>"


def _sign(right: bool | None) -> str:
    return "" if right is None else "correct" if right else "wrong"


def _milliseconds(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1e3:,.0f} ms"


def _script_json(value: Any) -> str:
    """Return JSON that is safe inside a <script> element."""
    return json.dumps(value, allow_nan=False).replace("<", "\\u003c")
