"""Pages as Jinja templates (`plots/pages/*.html`), which load nothing; texts stay text."""

from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from workbench.plots.marks.theme import PAGE_STYLE

FOLDER = Path(__file__).parents[1] / "pages"


def render(page: str, /, **texts: Any) -> str:
    """Return the page of a template, filled in."""
    return _templates().get_template(f"{page}.html").render(**texts)


@cache
def _templates() -> Environment:
    made = Environment(autoescape=True, loader=FileSystemLoader(FOLDER), keep_trailing_newline=True)
    made.globals |= {"plotlyjs": lambda: Markup(get_plotlyjs()), "figure_style": Markup(PAGE_STYLE)}
    return made
