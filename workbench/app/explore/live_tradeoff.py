"""The curves of a sweep for any preparation, kind of question and horizontal axis, read off at any of its ratios."""

import pandas as pd
import plotly.graph_objects as go
from ipywidgets import VBox

from workbench.app.explore.live import explorer, menu, number_slider
from workbench.plots.line_styles import selector_looks
from workbench.plots.lines import profile, profiles
from workbench.plots.styles import SELECTORS
from workbench.plots.sweep_curves import curves, levels

AXES = {
    "ratio": "share of document tokens recomputed",
    "rows_computed": "tokens computed",
    "flops": "operations to the first token",
}


def tradeoff_explorer(swept: pd.DataFrame) -> VBox:
    """Explore the table of a sweep by menus; only what it holds can be chosen."""
    block = swept[swept["mode"] == "block"]
    kinds = list(dict.fromkeys(block.kind))
    prepared = [name for name, part in block.groupby("prepare", sort=False) if part.ratio.nunique() > 1]
    level, ratios = levels(swept), sorted(block.ratio.dropna().unique())

    def draw(prepare: str, kind: str, axis: str, number: int) -> go.Figure:
        trials = block[(block.prepare == prepare) & (block["select"] != "none") & block.ratio.notna()]
        specs = [spec for spec in dict.fromkeys(trials["select"]) if spec != "all"]
        records = curves(swept, specs, prepare, kind, x=axis)
        by_ratio = axis == "ratio"
        panel = profile(f"{kind}, {prepare}", records, AXES[axis], "exact match", percent=True, percent_x=by_ratio)
        of_kind = trials[trials.kind == kind]
        best = of_kind[of_kind.ratio == ratios[number]].sort_values("em", ascending=False)
        scores = ", ".join(f"{SELECTORS.name_of(r.select)} {r.em:.1%}" for r in best.itertuples())
        return profiles(
            [panel],
            title="What recomputing buys",
            notice=f"Full attention {level['full', kind]:.1%}, Full Reuse {level['none', kind]:.1%} (after_system). "
            f"At {ratios[number]:.0%}: {scores or 'nothing was measured'}.",
            caption=f"n = {int(of_kind.n.max()):,} questions of this kind; 95% intervals (Wilson).",
            lines=3,
            zero=False,
            mark=ratios[number] if by_ratio else None,
            **selector_looks(specs),
        )

    menus = [menu(options) for options in (prepared, kinds, list(AXES))]
    return explorer([*menus, number_slider("ratio, from the smallest", ratios)], draw)
