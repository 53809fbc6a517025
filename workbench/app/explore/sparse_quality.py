"""Any two measures of sparse methods against each other, and the threshold that keeps a chosen share."""

import pandas as pd
import plotly.graph_objects as go
from ipywidgets import VBox

from workbench.app.explore.live import explorer, menu, slider
from workbench.metrics.thresholds import KEPT, cheapest
from workbench.plots.lines import plane, planes, points
from workbench.plots.styles import SPARSE_METHODS, looks_of

ACROSS = {"density": "density", "union": "density after the union", "cost": "operations, choice included"}
UP = {
    "em": "exact match",
    "f1": "F1",
    "mass": "attention mass kept",
    "recall": "recall of the largest tiles",
    "error": "error of the output",
    "kl": "KL of the next token (nats)",
    "agree": "same next token",
}


def quality_explorer(swept: pd.DataFrame, answers: pd.DataFrame) -> VBox:
    """Explore the settings measured by menus; `keep` in percent is read off for every method that is shown."""
    curve = swept[swept.group == "curve"]
    names = {SPARSE_METHODS.name_of(spec): method for spec, method in zip(curve.spec, curve.method, strict=True)}
    (dense,) = curve[curve.method == "dense"].to_dict("records")
    looks = looks_of(curve.spec)

    def draw(name: str, x: str, y: str, keep: int) -> go.Figure:
        settings = curve if name == "all" else curve[curve.method.isin([names[name], "dense"])]
        kept = y if y in KEPT else "em"
        enough = [r for r in cheapest(settings, kept, keep / 100, answers) if r["spec"]]
        listed = "; ".join(f"{r['spec']} ({r['density']:.0%})" for r in enough[:4]) or "no setting that is listed"
        percent = y not in ("error", "kl")
        return planes(
            [plane(name, points(settings, x, y), ACROSS[x], UP[y], dense.get(y), percent)],
            looks,
            title=f"{UP[y]} against {ACROSS[x]}",
            notice=f"{keep}% of the {UP[kept]} of dense attention is kept, sparsest first, by: {listed}.",
            caption=f"n = {int(dense['n']):,} questions; 95% intervals.",
        )

    across = {title: column for column, title in ACROSS.items() if column in curve}
    up = {title: column for column, title in UP.items()}
    return explorer([menu(["all", *names]), menu(across), menu(up), slider("keep (%)", 90, 50, 100)], draw)
