"""Choose a prompt, a preparation, a selector and a ratio, and see what recomputing leaves of the deviation."""

from collections.abc import Mapping, Sequence

import ipywidgets as widgets
import plotly.graph_objects as go

from workbench.app.explore.live import explorer, slider
from workbench.core.kv import KV
from workbench.data.prompt_view import of_sample
from workbench.data.sample import Sample
from workbench.engine.assembly import assemble
from workbench.methods import select
from workbench.metrics.kv_deviation import full_attention_kv, repair
from workbench.models.loading import Loaded
from workbench.plots.deviation import deviation
from workbench.plots.looks import SELECTORS


def repair_explorer(
    loaded: Loaded, samples: Sequence[Sample], cached: Mapping[str, Sequence[Sequence[KV]]]
) -> widgets.VBox:
    """`cached`: preparation → KV of the context blocks of every sample's prompt."""
    model, tokenizer, layout = loaded

    def draw(number: int, preparation: str, spec: str, percent: int) -> list[go.Figure]:
        reading = of_sample(samples[number], f"sample {number}", tokenizer, layout)
        prompt, end = reading.prompt, reading.prompt.starts[-1]
        kv, truth = assemble(model, prompt, cached[preparation][number]), full_attention_kv(model, prompt)
        rows = select.choose(select.named(spec)(model, prompt, kv), prompt, percent / 100)
        (found,) = repair(model, prompt, kv, [rows], truth)
        panels = {preparation: found.before, f"{len(rows)} tokens computed again": found.after}
        name = SELECTORS.name_of(spec)
        return [
            deviation(
                {name: gap[:end].cpu().numpy() for name, gap in panels.items()},
                reading.tokens[:end],
                reading.block_of[:end],
                marked=reading.supporting,
                notice=f"In the last layer {name} at {percent}% leaves {found.context[-1]:.0%} of the "
                f"context's deviation, and {found.asked[-1]:.0%} of the question's.",
                caption=f"{reading.source}. ★ marks passages that the answer needs; white: less than rounding.",
            )
        ]

    ways = widgets.Dropdown(options=list(cached))
    menu = widgets.Dropdown(options=[(SELECTORS.name_of(n), n) for n in select.names()], value="kv_deviation")
    return explorer(
        [slider("question", 0, 0, len(samples) - 1), ways, menu, slider("computed again (%)", 15, 0, 100)], draw
    )
