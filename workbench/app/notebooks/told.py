"""The grey line below a notebook's parameters: their values and notes on the model, folded, and findings."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from html import escape
from typing import Any

from IPython.core.getipython import get_ipython
from IPython.display import HTML, display, update_display

from workbench.core.errors import shorten

LINE = "told"  # display id
LINE_STYLE = "margin: 4px 0; font-size: 12px; line-height: 1.6; color: var(--jp-ui-font-color2, #5a6068)"
INK = "color: var(--jp-ui-font-color1)"
PAIR = f'<span style="display: inline-block; margin-right: 1.2em">{{}}=<span style="{INK}">{{}}</span></span>'
SUMMARY = "Parameters of this run"
HINT = "Findings appear here once all cells have run."
IMPORTING = "Importing libraries…"
OUTPUT = "output"  # does not affect results

_told: dict[str, str] = {}  # parts of this notebook's line


def values(namespace: Mapping[str, Any]) -> str:
    """Return parameters as HTML, `name=value` each, without None, empty values and `output`."""
    names = (name for name in namespace.get("__annotations__", {}) if name in namespace and name != OUTPUT)
    chosen = ((name, namespace[name]) for name in names if namespace[name] not in (None, "", [], ()))
    return " ".join(PAIR.format(escape(name), escape(shorten(_written(value)))) for name, value in chosen)


def _written(value: Any) -> str:
    return ", ".join(map(_written, value)) if isinstance(value, list | tuple) else str(value)


@contextmanager
def importing() -> Iterator[None]:
    """Show that libraries are being imported, which may take ten seconds, until `begin` replaces it."""
    _told.clear()
    _told.update(parameters=IMPORTING, hint="")
    if get_ipython() is not None:
        display(_html(), display_id=LINE)
    try:
        yield
    except BaseException:
        add(parameters="")  # the error is shown instead
        raise


def begin(namespace: Mapping[str, Any], waits: bool) -> None:
    """Show a new line; `waits`: with a placeholder for the finding."""
    show = update_display if _told.get("parameters") == IMPORTING else display
    _told.clear()
    _told.update(parameters=values(namespace), hint=HINT if waits else "")
    if get_ipython() is not None:
        show(_html(), display_id=LINE)


def add(**parts: str) -> None:
    """Update parts of the line: parameters (HTML), remark, finding (texts)."""
    _told.update(parts)
    if get_ipython() is not None and "parameters" in _told:
        update_display(_html(), display_id=LINE)


def _html() -> HTML:
    remark, found = (escape(_told.get(part, ""), quote=False) for part in ("remark", "finding"))
    head, waits = (f"<p><b>{found}</b></p>", "") if found else ("", _told["hint"])
    if _told["parameters"] in ("", IMPORTING):
        said = " ".join(filter(None, (_told["parameters"], remark, waits)))
        return HTML(f'{head}<p class="wb-told" style="{LINE_STYLE}">{said}</p>')
    said = " ".join(filter(None, (_told["parameters"], remark)))
    folded = f'<summary>{f"{SUMMARY}. {waits}" if waits else SUMMARY}</summary><p class="wb-told">{said}</p>'
    return HTML(f'{head}<details style="{LINE_STYLE}">{folded}</details>')
