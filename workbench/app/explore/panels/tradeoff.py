"""Quality by ratio and selector for any preprocessing, kind of question and horizontal axis."""

import pandas as pd
import plotly.graph_objects as go
from ipywidgets import VBox

from workbench.app.explore.live import explorer, menu, slider
from workbench.core.errors import BadInput
from workbench.metrics.measures import MEASURES
from workbench.metrics.tiles.thresholds import KEPT, cheapest
from workbench.plots.marks import chart
from workbench.plots.marks.method_names import sparse_look
from workbench.plots.marks.styles import SELECTORS
from workbench.plots.reports import trial_costs

AXES = {
    "ratio": "share of the passage tokens recomputed",
    "rows_computed": "tokens computed",
    "flops": "operations to the first token",
}


def tradeoff_explorer(trials: pd.DataFrame) -> VBox:
    """Explore trials (`trial_costs.trials`) by menus of the values they hold.

    Raises BadInput if no selector was measured at several ratios.
    """
    places = list(dict.fromkeys(trials["where"]))
    names = [name for name in trials.prepare.unique() if len(trial_costs.selector_curves(trials, name))]
    if not names:
        raise BadInput("the results hold no selector at two ratios or more: nothing can be drawn against the ratio")
    kinds, axes = list(dict.fromkeys(trials.kind)), [axis for axis in AXES if axis in trials]
    measures = [name for name in MEASURES if name in trials and trials[name].notna().any()]

    def draw(place: str, prepare: str, kind: str, axis: str, measure: str) -> go.Figure:
        curves = trial_costs.selector_curves(trials[trials["where"] == place], prepare)
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
            title=f"Quality by cost, passages cached {prepare}",
        )
        return drawn or go.Figure()

    choices = {"model and data": places, "cached": names, "questions": kinds, "across": axes, "up": measures}
    return explorer([menu(options, label) for label, options in choices.items()], draw)


ACROSS = {"density": "density", "union": "density after the union", "cost": "operations, selection included"}
UP = {
    "em": "exact match",
    "f1": "F1",
    "contains": "contains an alias",
    "mass": "attention mass kept",
    "recall": "recall of the largest tiles",
    "error": "output error",
    "prefill_kl": "KL of the next token (nats)",
    "prefill_agree": "same next token",
}
LOSSES = ("error", "prefill_kl")


def quality_explorer(settings: pd.DataFrame, answers: pd.DataFrame) -> VBox:
    """Explore the measured settings by menus; `keep` (percent) applies to every method shown.

    `settings` and `answers` as in `metrics.tiles.thresholds.cheapest`; the first source is explored.
    """
    own = settings[settings.source == settings.source.iloc[0]]
    names = {sparse_look(rule).name: rule for rule in own.rule.unique() if rule}

    def draw(name: str, x: str, y: str, keep: int) -> go.Figure | None:
        shown = own if name == "all" else own[own.rule.isin([names[name], ""])]
        kept = y if y in KEPT else "em"
        enough = [r for r in cheapest(shown, kept, keep / 100, answers) if r["sparse"]]
        listed = "; ".join(f"{r['sparse']} ({r['density']:.0%})" for r in enough[:4]) or "no listed setting"
        return chart.lines(
            shown[shown.rule != ""],
            x=x,
            y=y,
            by="rule",
            look=sparse_look,
            x_axis=ACROSS[x],
            y_axis=UP[y],
            percent=y not in LOSSES,
            title=f"{UP[y]} against {ACROSS[x]}",
            notice=f"{keep}% of the {UP[kept]} of dense attention is kept by (sparsest first): {listed}.",
            caption="95% intervals.",
            lines=3,
        )

    across = {title: column for column, title in ACROSS.items() if column in own}
    up = {title: column for column, title in UP.items() if column in own}
    return explorer(
        [menu(["all", *names], "method"), menu(across, "across"), menu(up, "up"), slider("keep (%)", 90, 50, 100)], draw
    )
