"""The curves of a sweep for any preparation, kind of question and horizontal axis, read off at any of its ratios."""

import ipywidgets as widgets
import pandas as pd
import plotly.graph_objects as go

from workbench.app.explore.live import explorer, slider
from workbench.plots.lines import profile, profiles
from workbench.plots.looks import SELECTORS
from workbench.plots.sweep_curves import curves, levels

AXES = {
    "ratio": "share of document tokens computed again",
    "rows_computed": "tokens computed",
    "flops": "operations to the first token",
}


def tradeoff_explorer(swept: pd.DataFrame) -> widgets.VBox:
    """Menus over the table of a sweep; only what it holds can be chosen."""
    block = swept[swept["mode"] == "block"]
    kinds = list(dict.fromkeys(block.kind))
    prepared = [name for name, part in block.groupby("prepare", sort=False) if part.ratio.nunique() > 1]
    level, ratios = levels(swept), sorted(block.ratio.dropna().unique())

    def draw(prepare: str, kind: str, axis: str, number: int) -> list[go.Figure]:
        part = block[(block.prepare == prepare) & (block["select"] != "none") & block.ratio.notna()]
        specs = [spec for spec in dict.fromkeys(part["select"]) if spec != "all"]
        panel = profile(
            f"{kind}, {prepare}",
            curves(swept, specs, prepare, kind, x=axis),
            AXES[axis],
            "exact match",
            percent=True,
            percent_x=axis == "ratio",
        )
        here = part[(part.kind == kind) & (part.ratio == ratios[number])].sort_values("em", ascending=False)
        read = (
            ", ".join(f"{SELECTORS.name_of(r.select)} {r.em:.1%}" for r in here.itertuples()) or "nothing was measured"
        )
        figure = profiles(
            [panel],
            title="What recomputing buys",
            notice=f"Full attention {level['full', kind]:.1%}, Full Reuse {level['none', kind]:.1%} (isolated). "
            f"At {ratios[number]:.0%}: {read}.",
            caption=f"n = {int(part[part.kind == kind].n.max()):,} questions of this kind; 95% intervals (Wilson).",
            colours={SELECTORS.name_of(spec): SELECTORS.colour_of(spec) for spec in specs},
            symbols={SELECTORS.name_of(spec): SELECTORS.symbol_of(spec) for spec in specs},
            lines=3,
            zero=False,
            mark=ratios[number] if axis == "ratio" else None,
        )
        return [figure]

    menus = [widgets.Dropdown(options=options) for options in (prepared, kinds, list(AXES))]
    return explorer([*menus, slider("ratio, from the smallest", 0, 0, len(ratios) - 1)], draw)
