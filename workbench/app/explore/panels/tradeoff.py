"""Quality by ratio and selector for any preprocessing, kind of question and horizontal axis."""

import pandas as pd
import plotly.graph_objects as go
from ipywidgets import VBox

from workbench.app.explore.live import explorer, menu
from workbench.core.errors import BadInput
from workbench.plots.marks import chart
from workbench.plots.marks.measures import MEASURES
from workbench.plots.marks.styles import SELECTORS
from workbench.plots.reports import tradeoff

AXES = {
    "ratio": "share of the document tokens recomputed",
    "rows_computed": "tokens computed",
    "flops": "operations to the first token",
}


def tradeoff_explorer(trials: pd.DataFrame) -> VBox:
    """Explore trials (`tradeoff.trials`) by menus; only what they hold can be chosen.

    Raises BadInput where no selector was measured at several ratios.
    """
    places = list(dict.fromkeys(trials["where"]))
    names = [name for name in trials.prepare.unique() if len(tradeoff.selector_curves(trials, name))]
    if not names:
        raise BadInput("the results hold no selector at two ratios or more: nothing can be drawn against the ratio")
    kinds, axes = list(dict.fromkeys(trials.kind)), [axis for axis in AXES if axis in trials]
    measures = [name for name in MEASURES if name in trials and trials[name].notna().any()]

    def draw(place: str, prepare: str, kind: str, axis: str, measure: str) -> go.Figure:
        curves = tradeoff.selector_curves(trials[trials["where"] == place], prepare)
        drawn = chart.lines(
            curves[curves.kind == kind],
            x=axis,
            y=measure,
            by="select",
            look=SELECTORS.of,
            panel="where",
            percent=MEASURES[measure].percent,
            x_axis=AXES[axis],
            y_axis=MEASURES[measure].axis,
            title=f"What recomputing buys, passages cached {prepare}",
        )
        return drawn or go.Figure()

    return explorer([menu(options) for options in (places, names, kinds, axes, measures)], draw)
