"""Any two measures of sparse methods against each other, and the threshold that keeps a chosen share."""

import ipywidgets as widgets
import pandas as pd
import plotly.graph_objects as go

from workbench.app.explore.live import explorer, slider
from workbench.metrics.thresholds import KEPT, cheapest
from workbench.plots.lines import plane, planes, points
from workbench.plots.looks import SPARSE_METHODS, looks_of

ACROSS = {"density": "density", "union": "density after the union", "cost": "operations, choice included"}
UP = {
    "em": "exact match", "f1": "F1", "mass": "attention mass kept", "recall": "recall of the largest tiles",
    "error": "error of the output", "kl": "KL of the next token (nats)", "agree": "same next token",
}  # fmt: skip


def quality_explorer(swept: pd.DataFrame, answers: pd.DataFrame) -> widgets.VBox:
    """Menus over the settings measured; `keep` in percent is read off for every method that is shown."""
    curve = swept[swept.group == "curve"]
    names = {SPARSE_METHODS.name_of(spec): method for spec, method in zip(curve.spec, curve.method, strict=True)}
    (dense,) = curve[curve.method == "dense"].to_dict("records")
    looks = looks_of(curve.spec)

    def draw(which: str, x: str, y: str, keep: int) -> list[go.Figure]:
        part = curve if which == "all" else curve[curve.method.isin([names[which], "dense"])]
        level = dense.get(y)
        asked = y if y in KEPT else "em"
        found = [r for r in cheapest(part, asked, keep / 100, answers) if r["spec"]]
        listed = "; ".join(f"{r['spec']} ({r['density']:.0%})" for r in found[:4]) or "no setting that is listed"
        panel = plane(which, points(part, x, y), ACROSS[x], UP[y], level, y not in ("error", "kl"))
        figure = planes(
            [panel],
            looks,
            title=f"{UP[y]} against {ACROSS[x]}",
            notice=f"{keep}% of the {UP[asked]} of dense attention is kept, sparsest first, by: {listed}.",
            caption=f"n = {int(dense['n']):,} questions; 95% intervals.",
        )
        return [figure]

    across = [(text, what) for what, text in ACROSS.items() if what in curve]
    up = [(text, what) for what, text in UP.items()]
    menus = [widgets.Dropdown(options=options) for options in (["all", *names], across, up)]
    return explorer([*menus, slider("keep (%)", 90, 50, 100)], draw)
