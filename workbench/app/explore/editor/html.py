"""The prompt one can touch as HTML: the widget's own script over results that were computed beforehand.

What is drawn asks no network and needs no kernel. Texts of prompts and answers reach the document as text only.
"""

import json
from html import escape
from pathlib import Path
from typing import Any

MIME = "application/vnd.workbench.prompt.v1+json"
HERE = Path(__file__).parent
STANDS = '<div id="{name}"></div><style>{css}</style>\n<script type="module">{script}\n{call}</script>'
PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>A prompt to touch</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline';
script-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'">
<style>:root {{ color-scheme: light dark; }} body {{ margin: 0 auto; max-width: 1320px; background: Canvas; }}</style>
</head><body>{body}</body></html>
"""


def page(data: dict[str, Any]) -> str:
    """Return a whole page over the data of a `PromptPage`."""
    return PAGE.format(body=body(data))


def body(data: dict[str, Any], name: str = "prompt") -> str:
    """Return the HTML that draws a page's data, script and style included."""
    script = (HERE / "prompt_widget.js").read_text(encoding="utf-8").replace("export default", "const widget =")
    call = f"const data = {_script_json(data)};\n"
    call += f"widget.render({{ model: pageModel(data), el: document.getElementById({json.dumps(name)}) }});"
    css = (HERE / "prompt_widget.css").read_text(encoding="utf-8")
    return STANDS.format(name=escape(name), css=css, script=script, call=call)


def summary(record: dict[str, Any], method: str) -> str:
    """Return both answers and the text as HTML without a script, for readers that run none; `method` by its name."""
    answers, bill = record["answers"], record["bill"]
    said = "".join(
        f"<li><b>{title}</b>: {escape(answers[name]['text'])}</li>"
        for name, title in (("full", "full attention"), ("method", method))
        if answers.get(name)
    )
    took = f"<p>{bill['computed']} of {bill['length']} tokens computed.</p>" if bill else ""
    text = "".join(f"<p>{escape(''.join(block['tokens']))}</p>" for block in record["text"].get("blocks", []))
    return f"<ul>{said}</ul>{took}<details><summary>The prompt</summary>{text}</details>"


def _script_json(value: Any) -> str:
    """Return JSON that is safe inside a <script> element."""
    return json.dumps(value, allow_nan=False).replace("<", "\\u003c")
