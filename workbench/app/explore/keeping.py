"""Save the content of a view: a static copy in the saved notebook, and its figures as files."""

import re
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any

import ipywidgets as widgets
import plotly.graph_objects as go
from IPython.display import HTML, DisplayHandle, display

from workbench.app.reports.figure_files import KINDS, write_figure
from workbench.core.errors import BadInput

AS_SAVED = "<p>State when the notebook was saved. To interact, run the notebook up to this cell.</p>"
UNSEEN = "<p>The notebook was saved before this view was drawn. Run the notebook up to this cell.</p>"


class StillView:
    """A static fallback, hidden behind a view: shown when the notebook is reopened without widget state."""

    def __init__(self, shown: Callable[[], str]):
        self.shown, self.handles = shown, list[DisplayHandle]()

    def display(self, bundle: Any) -> None:
        """Show a view by its MIME bundle, with the fallback behind it."""
        data, about = bundle if isinstance(bundle, tuple) else (bundle, {})
        display(data, metadata=about, raw=True)
        self.handles.append(display(self._html(), display_id=True))

    def update(self) -> None:
        """Update the fallback to the current content."""
        for handle in list(self.handles):
            handle.update(self._html())

    def _html(self) -> HTML:
        said = self.shown()
        return HTML(f'<div class="wb-static" hidden>{AS_SAVED + said if said else UNSEEN}</div>')


def save_row(figures: Callable[[], Sequence[go.Figure]]) -> list[widgets.Widget]:
    """Return a menu of file types, a dark-theme switch, and a button that saves the shown figures."""
    narrow = widgets.Layout(width="90px")
    named = {"description": "file format", "style": {"description_width": "initial"}}
    kind = widgets.Dropdown(options=list(KINDS), layout=widgets.Layout(width="max-content"), **named)
    dark = widgets.Checkbox(description="dark", indent=False, layout=narrow)
    button = widgets.Button(description="Save figures", tooltip="Save the figures next to the notebook")
    said = widgets.HTML()

    def save(_: Any) -> None:
        try:
            paths = [write_figure(each, free(file_name(each), kind.value), dark.value) for each in figures()]
            said.value = escape(f"written: {', '.join(map(str, paths))}")
        except BadInput as problem:
            said.value = escape(str(problem))

    button.on_click(save)
    return [kind, dark, button, said]


def file_name(figure: go.Figure) -> str:
    """Return a file name from a figure's title, its first bold text."""
    titles = (note.text or "" for note in figure.layout.annotations)
    title = next((text[3:-4] for text in titles if text.startswith("<b>")), "figure")
    return re.sub(r"[^a-z0-9]+", "-", re.sub(r"&\w+;", " ", title.lower())).strip("-")[:60] or "figure"


def free(name: str, kind: str) -> Path:
    """Return an unused path in the current folder."""
    path, number = Path(f"{name}.{kind}"), 1
    while path.exists():
        number += 1
        path = Path(f"{name}-{number}.{kind}")
    return path
