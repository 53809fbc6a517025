"""Choose a prompt, a preparation, a selector and a ratio, and see what recomputing leaves of the deviation."""

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go
from ipywidgets import VBox

from workbench.app.explore.live import explorer, menu, number_slider, slider
from workbench.app.explore.prompts import selector_menu, view_of
from workbench.core.kv import KV
from workbench.data.sample import Sample
from workbench.engine.assembly import assemble
from workbench.methods import select
from workbench.metrics.kv.kv_deviation import full_attention_kv, repair
from workbench.models.loading import Loaded
from workbench.plots.kv.deviation import deviation
from workbench.plots.marks.styles import SELECTORS


def repair_explorer(loaded: Loaded, samples: Sequence[Sample], cached: Mapping[str, Sequence[Sequence[KV]]]) -> VBox:
    """Explore `cached`: preparation → KV of the context blocks of every sample's prompt."""
    model = loaded.model

    def draw(number: int, preparation: str, spec: str, percent: int) -> go.Figure:
        view = view_of(loaded, samples, number)
        prompt, end = view.prompt, view.prompt.starts[-1]
        kv = assemble(model, prompt, cached[preparation][number])
        rows = select.choose(select.named(spec)(model, prompt, kv), prompt, percent / 100)
        (repaired,) = repair(model, prompt, kv, [rows], full_attention_kv(model, prompt))
        gaps = {preparation: repaired.before, f"{len(rows)} tokens recomputed": repaired.after}
        return deviation(
            {name: gap[:end].cpu().numpy() for name, gap in gaps.items()},
            view.tokens[:end],
            view.block_of[:end],
            marked=view.supporting,
            notice=f"In the last layer {SELECTORS.name_of(spec)} at {percent}% leaves {repaired.context[-1]:.0%} of "
            f"the context's deviation, and {repaired.asked[-1]:.0%} of the question's.",
            caption=f"{view.source}. ★ marks passages that the answer needs; blank: less than rounding.",
        )

    controls = [number_slider("question", samples), menu(list(cached)), selector_menu("kv_deviation")]
    return explorer([*controls, slider("recomputed (%)", 15, 0, 100)], draw)
