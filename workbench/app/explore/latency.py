"""A prompt of any length, answered now: where its time to the first token goes, in three ways."""

from collections.abc import Sequence

import plotly.graph_objects as go
from ipywidgets import VBox

from workbench.app.explore.live import explorer, slider
from workbench.data.sample import Sample
from workbench.experiments import ttft
from workbench.experiments.record import device_name
from workbench.methods.modes.full import Full
from workbench.methods.modes.reuse import Reuse
from workbench.methods.select.query_guided import QueryGuided
from workbench.metrics.latency import STAGES, stages
from workbench.models.loading import Loaded
from workbench.models.spec import attach
from workbench.plots.bars import breakdown, listed
from workbench.store import Store

MOST = 4096  # tokens


def latency_explorer(loaded: Loaded, samples: Sequence[Sample], question: int = 50, repeats: int = 3) -> VBox:
    """Length of the prompt, share of its blocks that is in the store, share of its tokens computed again."""
    model, tokenizer, layout = loaded
    longest = min(attach(model).context or MOST, MOST)

    def draw(length: int, cached: int, again: int) -> list[go.Figure]:
        prompt = ttft.prompt_of_length(length, samples, tokenizer, layout, min(question, length // 2))
        store = ttft.filled(model, prompt.context)
        count = round(cached / 100 * len(prompt.context))
        part = ttft.partial_store(model, prompt.context, store, count)
        select = QueryGuided() if again else None
        ways: dict[str, tuple[Full | Reuse, Store]] = {
            "full attention": (Full(), store),
            f"blocks, {cached}% cached": (Reuse(), part),
            f"the same, {again}% computed again": (Reuse(select=select, ratio=again / 100), part),
        }
        found = {name: stages(model, prompt, way, kept, repeats).seconds for name, (way, kept) in ways.items()}
        last = found[f"the same, {again}% computed again"]
        figure = breakdown(
            found,
            STAGES,
            title=f"{len(prompt):,} tokens in {len(prompt.blocks)} blocks",
            notice=f"With {again}% computed again: {listed(STAGES, last)}. Blocks that are not cached are "
            "encoded while blocks are put in place.",
            caption=f"Medians of {repeats} requests, {device_name(model.device)}.",
        )
        return [figure]

    low = min(64, longest)
    return explorer(
        [slider("tokens", min(512, longest), low, longest), slider("cached (%)", 100, 0, 100),
         slider("computed again (%)", 0, 0, 100)],
        draw,
    )  # fmt: skip
