"""A figure on the screen that takes the place of another, without flicker."""

from collections.abc import Callable, Sequence
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
    controls: Sequence[widgets.Widget], draw: Callable[..., Sequence[go.Figure]], note: str = ""
) -> widgets.VBox:
    """Controls over figures. `draw(*values)` gives the figures, always as many; what a control's value makes impossible
    (BadInput) is said beside the controls and the figures stay as they were."""
    said = widgets.HTML(note)
    lives = [Live(figure) for figure in draw(*(control.value for control in controls))]

    def redraw(_: Any) -> None:
        try:
            figures = draw(*(control.value for control in controls))
        except BadInput as problem:
            said.value = f'<span style="color:#b00020">{_escape(str(problem))}</span>'
            return
        said.value = note
        for live, figure in zip(lives, figures, strict=True):
            live.show(figure)

    for control in controls:
        control.observe(redraw, "value")
    rows = [widgets.HBox(list(controls), layout=widgets.Layout(flex_flow="row wrap")), said]
    return widgets.VBox([*rows, *(live.widget for live in lives)])


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")


def slider(label: str, value: int, low: int, high: int, **more: Any) -> widgets.IntSlider:
    """A whole number; the figure is drawn when the handle is let go."""
    return widgets.IntSlider(
        value=min(max(value, low), high), min=low, max=high, description=label, continuous_update=False,
        style={"description_width": "initial"}, **more,
    )  # fmt: skip
