"""Controls over live figures, which update without flicker."""

import json
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence, Sized
from html import escape
from pathlib import Path
from typing import Any, ClassVar
from weakref import WeakValueDictionary

import ipywidgets as widgets
import numpy as np
import plotly.graph_objects as go
from traitlets import HasTraits, Instance, Int, Unicode

from workbench.app.explore.keeping import StillView, save_row
from workbench.core.blocks import Prompt
from workbench.core.errors import BadInput
from workbench.data.prompt_view import PromptView
from workbench.plots.attention.token_axes import axes_of, marks, token_of
from workbench.plots.marks.theme import NOTEBOOK_STYLE


class Selection(HasTraits):
    """The selected token: a position of the prompt, -1 for none. Figures mark it; a click on a figure sets it."""

    token = Int(-1)


_KNOWN: WeakValueDictionary[tuple[str, ...], Selection] = WeakValueDictionary()


def selection_of(prompt: Prompt) -> Selection:
    """Return the selection that all live explorers of this prompt share."""
    return _KNOWN.setdefault(tuple(block.content for block in prompt.blocks), Selection())


GONE = "These controls have lost their kernel. Rerun the notebook up to this cell."
STYLE_TAG = f"""{NOTEBOOK_STYLE}<style>
.wb-explorer.jupyter-widgets-disconnected::before {{ content: {json.dumps(GONE)}; color: #c55a11;
  font: 600 13px/1.5 system-ui, sans-serif; }}
.wb-explorer.wb-explorer.wb-explorer :focus-visible {{ outline-offset: 1px;
  outline: 2px solid var(--jp-brand-color1, #0b62a4) !important; }}
</style>"""  # figures follow the page's theme
WITHOUT = "Interactive explorer: run the notebook up to this cell to show it."


class Explorer(widgets.VBox):
    """Controls over figures; where widgets cannot be shown, a line on how to see them."""

    def __init__(self, rows: Sequence[widgets.Widget], figures: Sequence["LiveFigure"]):
        self._figures, self._kept = figures, StillView(self._pictures)
        super().__init__([*rows, *figures], _dom_classes=("wb-explorer",))
        for figure in figures:
            figure.on_msg(self._drawn)

    def __repr__(self) -> str:
        return WITHOUT

    def _ipython_display_(self, **kwargs: Any) -> None:
        self._kept.display(self._repr_mimebundle_(**kwargs))

    def _drawn(self, figure: "LiveFigure", message: Any, _: Any) -> None:
        if isinstance(message, dict) and isinstance(picture := message.get("picture"), str):
            figure.picture = picture
            self._kept.update()

    def _pictures(self) -> str:
        pictures = (b64encode(figure.picture.encode()).decode() for figure in self._figures if figure.picture)
        return "".join(f'<p><img class="papers" src="data:image/svg+xml;base64,{each}"></p>' for each in pictures)


class Script(widgets.Widget):
    """Plotly's 5 MB script: sent to a page once and saved once per notebook, for all figures."""

    text = Unicode(str(go.FigureWidget._esm)).tag(sync=True)

    _held: ClassVar["Script | None"] = None

    @classmethod
    def of_kernel(cls) -> "Script":
        """Return this kernel's instance, or a new one after widgets were closed."""
        if cls._held is None or cls._held.comm is None:
            cls._held = cls()
        return cls._held


class LiveFigure(go.FigureWidget):
    """A FigureWidget that waits for the browser to load plotly's script."""

    _esm = Path(__file__).with_name("figure.js").read_text(encoding="utf-8")
    _plotly = Instance(Script).tag(sync=True, **widgets.widget_serialization)
    picture = ""  # the browser's rendering, as SVG

    def __init__(self, figure: go.Figure):
        self._complete = False
        self._plotly = Script.of_kernel()
        super().__init__(figure)
        self._complete = True
        self.open()

    def open(self) -> None:
        """Send the figure once the browser is ready: later messages may be lost."""
        if self._complete:
            super().open()


class Live:
    """A FigureWidget that shows one figure after another.

    Plotly's own controls (frames, sliders, menus) are dropped: widgets drive it. With a `selection`, the selected token
    is marked, and a click on a token selects it.
    """

    def __init__(self, figure: go.Figure, selection: Selection | None = None):
        self.widget = LiveFigure(_bare(figure))
        self.selection = selection
        self._follow()
        if selection is not None:
            selection.observe(lambda _: self._mark(), "token")
            self._mark()

    def show(self, figure: go.Figure) -> None:
        """Replace the shown figure with `figure`."""
        self._draw(_bare(figure))
        self._follow()
        self._mark()

    def _draw(self, new: go.Figure) -> None:
        self.widget.layout.shapes = []  # an update keeps what the new layout lacks
        with self.widget.batch_update():
            if [trace.type for trace in new.data] == [trace.type for trace in self.widget.data]:
                for old, trace in zip(self.widget.data, new.data, strict=True):
                    old.update({k: v for k, v in trace.to_plotly_json().items() if k != "type"}, overwrite=True)
                self.widget.update_layout(new.layout.to_plotly_json(), overwrite=True)
                return
        self.widget.data = []
        self.widget.add_traces(new.data)
        self.widget.update_layout(new.layout.to_plotly_json(), overwrite=True)

    def _follow(self) -> None:
        """Remember the figure's own shapes, and subscribe to clicks on its tokens."""
        self._shapes = list(self.widget.layout.shapes)
        if self.selection is not None and axes_of(self.widget) is not None:
            for trace in self.widget.data:
                trace.on_click(self._clicked)

    def _clicked(self, trace: Any, points: Any, _: Any) -> None:
        if points.point_inds and self.selection is not None:
            token = token_of(self.widget, trace, points.point_inds[0])
            if token is not None:
                self.selection.token = token

    def _mark(self) -> None:
        if self.selection is not None:
            self.widget.layout.shapes = [*self._shapes, *marks(self.widget, self.selection.token)]


def _bare(figure: go.Figure) -> go.Figure:
    bare = go.Figure(figure.data, figure.layout)
    bare.layout.sliders = []
    bare.layout.updatemenus = []
    for trace in bare.data:
        if trace.type == "heatmap" and np.isnan(trace.z).any():  # a widget sends two-dimensional arrays as JSON: no nan
            trace.z = np.where(np.isnan(trace.z), None, trace.z)
    return bare


def explorer(
    controls: Sequence[widgets.Widget],
    draw: Callable[..., go.Figure | Sequence[go.Figure]],
    view: PromptView | None = None,
) -> Explorer:
    """Put controls over figures. `draw(*values)` returns the figures, the same number at every call.

    If it raises BadInput, the reason is shown next to the controls and the figures stay unchanged. Figures with token
    axes (`plots.attention.token_axes`) mark the selected token of `view`'s prompt, in all its explorers.
    """
    selection = None if view is None else selection_of(view.prompt)

    def figures() -> list[go.Figure]:
        drawn = draw(*(control.value for control in controls))
        return [drawn] if isinstance(drawn, go.Figure) else list(drawn)

    message, chosen = widgets.HTML(), widgets.HTML(STYLE_TAG)
    shown = figures()
    lives = [Live(figure, selection) for figure in shown]

    def redraw(_: Any) -> None:
        try:
            drawn = figures()
        except BadInput as problem:
            message.value = f'<span style="color:#b00020">{escape(str(problem), quote=False)}</span>'
            return
        message.value = ""
        shown[:] = drawn
        for live, figure in zip(lives, drawn, strict=True):
            live.show(figure)

    def say(_: Any = None) -> None:
        if view is not None and selection is not None and selection.token >= 0:
            chosen.value = f"{STYLE_TAG}<b>selected</b>: {escape(describe_token(view, selection.token))}"

    for control in controls:
        control.observe(redraw, "value")
    if selection is not None:
        selection.observe(say, "token")
        say()
    rows = [widgets.HBox(list(controls), layout=widgets.Layout(flex_flow="row wrap")), message]
    rows += [widgets.HBox([*save_row(lambda: shown), chosen])]
    return Explorer(rows, [live.widget for live in lives])


def describe_token(view: PromptView, token: int) -> str:
    """Describe a token by its position, text and block."""
    block = int(view.block_of[token])
    place = "the question" if block == len(view.prompt.blocks) - 1 else f"block {block}"
    text = view.tokens[token].replace("\n", "⏎")
    return f"token {token:,} “{text}” of {place}"


def slider(label: str, value: int, low: int, high: int) -> widgets.IntSlider:
    """Return an integer slider; the figure is drawn on release."""
    form = {"description": label, "continuous_update": False, "style": {"description_width": "initial"}}
    return widgets.IntSlider(value=min(max(value, low), high), min=low, max=high, **form)


def number_slider(label: str, items: Sized, value: int = 0) -> widgets.IntSlider:
    """Return a slider over the numbers of `items`, from 0."""
    return slider(label, value, 0, len(items) - 1)


def menu(options: Sequence[Any] | Mapping[str, Any], label: str, **more: Any) -> widgets.Dropdown:
    """Return a menu of values, or of {name: value}."""
    choices = list(options.items()) if isinstance(options, Mapping) else list(options)
    form = {"style": {"description_width": "initial"}, "layout": widgets.Layout(width="max-content")}
    return widgets.Dropdown(options=choices, description=label, **form, **more)


def text_field(label: str, value: str, width: int) -> widgets.Text:
    """Return a line of text, `width` px wide; the figure is drawn when it loses focus."""
    layout = widgets.Layout(width=f"{width}px")
    return widgets.Text(value, description=label, continuous_update=False, layout=layout)
