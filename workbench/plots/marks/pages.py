"""Pages from Jinja templates (`plots/pages/*.html`); they load nothing, and all texts are escaped."""

import re
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from workbench.plots.marks.theme import PAGE_STYLE

FOLDER = Path(__file__).parents[1] / "pages"
PLAIN = re.compile(r"</?(?:b|i|u|s|em|strong|sub|sup|br|extra)\s*/?>", re.IGNORECASE)
TAG = re.compile(r"<(?=[a-zA-Z/!])[^<>]*>?")


def render(page: str, /, **texts: Any) -> str:
    """Render a template."""
    return _templates().get_template(f"{page}.html").render(**texts)


@cache
def _templates() -> Environment:
    made = Environment(autoescape=True, loader=FileSystemLoader(FOLDER), keep_trailing_newline=True)
    made.globals |= {"plotlyjs": lambda: Markup(get_plotlyjs()), "figure_style": Markup(PAGE_STYLE)}
    made.globals |= {f"saving_{kind}": Markup(saving(kind)) for kind in ("js", "css")}
    return made


def saving(kind: str) -> str:
    """Return the script ("js") or style ("css") of a page's "Save as…" buttons."""
    return (FOLDER / f"saving.{kind}").read_text(encoding="utf-8")


def inert(value: Any) -> Any:
    """Return plotly's JSON with all but plotly's plain tags escaped."""
    if isinstance(value, dict):
        return {name: inert(each) for name, each in value.items()}
    if isinstance(value, list):
        return [inert(each) for each in value]
    return TAG.sub(_kept, value) if isinstance(value, str) and "<" in value else value


def _kept(found: re.Match[str]) -> str:
    return found[0] if PLAIN.fullmatch(found[0]) else "&lt;" + found[0][1:]
