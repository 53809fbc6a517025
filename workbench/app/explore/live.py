"""Controls over figures on the screen; a figure takes the place of another without flicker."""

from collections.abc import Callable, Mapping, Sequence, Sized
from typing import Any

import ipywidgets as widgets
import numpy as np
import plotly.graph_objects as go

from workbench.core.errors import BadInput


class Live:
    """A FigureWidget that shows one figure after another. Batch controls (frames, sliders, menus) are left out:
    widgets drive it."""

    def __init__(self, figure: go.Figure):
        self.widget = go.FigureWidget(_bare(figure))

    def show(self, figure: go.Figure) -> None:
        """Draw `figure` in place of what is shown."""
        new = _bare(figure)
        self.widget.layout.shapes = []  # an update leaves alone what the new layout does not mention
        with self.widget.batch_update():
            if [trace.type for trace in new.data] == [trace.type for trace in self.widget.data]:
                for old, trace in zip(self.widget.data, new.data, strict=True):
                    old.update({k: v for k, v in trace.to_plotly_json().items() if k != "type"}, overwrite=True)
                self.widget.update_layout(new.layout.to_plotly_json(), overwrite=True)
                return
        self.widget.data = []
        self.widget.add_traces(new.data)
        self.widget.update_layout(new.layout.to_plotly_json(), overwrite=True)


def _bare(figure: go.Figure) -> go.Figure:
    bare = go.Figure(figure.data, figure.layout)
    bare.layout.sliders = []
    bare.layout.updatemenus = []
    for trace in bare.data:
        if trace.type == "heatmap" and np.isnan(trace.z).any():  # a widget sends two-dimensional arrays as JSON: no nan
            trace.z = np.where(np.isnan(trace.z), None, trace.z)
    return bare


def explorer(
    controls: Sequence[widgets.Widget], draw: Callable[..., go.Figure | Sequence[go.Figure]], note: str = ""
) -> widgets.VBox:
    """Put controls over figures. `draw(*values)` gives the figures, always as many.

    Where a control's value makes them impossible (BadInput), the reason is shown beside the controls and the figures
    stay as they were.
    """

    def figures() -> list[go.Figure]:
        drawn = draw(*(control.value for control in controls))
        return [drawn] if isinstance(drawn, go.Figure) else list(drawn)

    message = widgets.HTML(note)
    lives = [Live(figure) for figure in figures()]

    def redraw(_: Any) -> None:
        try:
            drawn = figures()
        except BadInput as problem:
            escaped = str(problem).replace("&", "&amp;").replace("<", "&lt;")
            message.value = f'<span style="color:#b00020">{escaped}</span>'
            return
        message.value = note
        for live, figure in zip(lives, drawn, strict=True):
            live.show(figure)

    for control in controls:
        control.observe(redraw, "value")
    rows = [widgets.HBox(list(controls), layout=widgets.Layout(flex_flow="row wrap")), message]
    return widgets.VBox([*rows, *(live.widget for live in lives)])


def slider(label: str, value: int, low: int, high: int) -> widgets.IntSlider:
    """Return a slider of whole numbers; the figure is drawn when the handle is let go."""
    form = {"description": label, "continuous_update": False, "style": {"description_width": "initial"}}
    return widgets.IntSlider(value=min(max(value, low), high), min=low, max=high, **form)


def number_slider(label: str, items: Sized, value: int = 0) -> widgets.IntSlider:
    """Return a slider over the numbers of `items`, from 0."""
    return slider(label, value, 0, len(items) - 1)


def menu(options: Sequence | Mapping, label: str = "", **more: Any) -> widgets.Dropdown:
    """Return a menu of values, or of names with their values."""
    choices = list(options.items()) if isinstance(options, Mapping) else list(options)
    return widgets.Dropdown(options=choices, description=label, **more)


def text_field(label: str, value: str, width: int) -> widgets.Text:
    """Return a line of text, `width` px wide; the figure is drawn when it is left."""
    layout = widgets.Layout(width=f"{width}px")
    return widgets.Text(value, description=label, continuous_update=False, layout=layout)
