"""Time to the first token of a prompt by stage, measured now with three methods."""

from collections.abc import Sequence

import pandas as pd
import plotly.graph_objects as go
from ipywidgets import VBox

from workbench.app.explore.live import explorer, menu, slider
from workbench.core.blocks import Prompt
from workbench.data.sample import Sample
from workbench.experiments.latency import ttft
from workbench.experiments.latency.ttft_model import fit_ttft
from workbench.experiments.simulation.store_replay import GB, Machine, replay
from workbench.experiments.trials.record import device_name
from workbench.methods.modes.full import Full
from workbench.methods.modes.reuse import Reuse
from workbench.methods.select.query_guided import QueryGuided
from workbench.methods.serving.scheduler import Mode
from workbench.metrics.stages import stages
from workbench.models.loading import Loaded
from workbench.plots.marks import chart
from workbench.plots.marks.styles import STAGES
from workbench.plots.reports import serving as figures
from workbench.plots.reports.findings import times
from workbench.store import MemoryStore, Store

MOST = 4096  # tokens


def latency_explorer(loaded: Loaded, samples: Sequence[Sample], question: int = 50, repeats: int = 3) -> VBox:
    """Explore the prompt's length, the share of its blocks in the store, and the share of recomputed tokens."""
    model, tokenizer, layout = loaded
    longest = min(loaded.spec.context or MOST, MOST)

    def draw(length: int, cached: int, percent: int) -> go.Figure:
        prompt = ttft.prompt_of_length(length, samples, tokenizer, layout, min(question, length // 2))
        return stages_of(loaded, prompt, ttft.filled_store(model, prompt.context), cached, percent, repeats)

    tokens = slider("tokens", 512, min(64, longest), longest)
    return explorer([tokens, slider("cached (%)", 100, 0, 100), slider("recomputed (%)", 0, 0, 100)], draw)


def request_explorer(loaded: Loaded, prompt: Prompt, repeats: int = 3) -> VBox:
    """Explore, for one prompt, the share of its blocks in the store and the share of recomputed tokens."""
    store = ttft.filled_store(loaded.model, prompt.context)

    def draw(cached: int, percent: int) -> go.Figure:
        return stages_of(loaded, prompt, store, cached, percent, repeats)

    return explorer([slider("cached (%)", 100, 0, 100), slider("recomputed (%)", 15, 0, 100)], draw)


def stages_of(loaded: Loaded, prompt: Prompt, store: MemoryStore, cached: int, percent: int, repeats: int) -> go.Figure:
    """Measure and draw the stages of three methods; `cached` (blocks) and `percent` (recomputed) in percent."""
    model = loaded.model
    partial = ttft.partial_store(model, prompt.context, store, round(cached / 100 * len(prompt.context)))
    select = QueryGuided() if percent else None
    recomputed = f"cached blocks, {percent}% recomputed"
    methods: dict[str, tuple[Full | Reuse, Store]] = {
        "full attention": (Full(), store),
        f"blocks, {cached}% cached": (Reuse(), partial),
        recomputed: (Reuse(select=select, ratio=percent / 100), partial),
    }
    seconds = {
        name: stages(model, prompt, method, blocks, repeats).seconds for name, (method, blocks) in methods.items()
    }
    full, _, partly = (sum(of_stages.values()) for of_stages in seconds.values())
    rows = [(name, stage, 1e3 * took) for name, taken in seconds.items() for stage, took in taken.items()]
    figure = chart.bars(
        chart.measured_rows(pd.DataFrame(rows, columns=["method", "stage", "value"])),
        y="method",
        by="stage",
        look=STAGES.of,
        axis="milliseconds to the first token",
        title=f"{len(prompt):,} tokens in {len(prompt.blocks)} blocks",
        notice=f"With {percent}% recomputed the first token comes {times(full / partly, 'sooner', 'later')} than with "
        "full attention. Blocks that are not cached are encoded while others are put in place.",
        caption=f"Medians of {repeats} requests, {device_name(model.device)}.",
    )
    assert figure is not None  # there are rows
    return figure


def store_explorer(requests: Sequence[Sequence[int]], prepared: Sequence[int], machine: Machine, seed: int = 0) -> VBox:
    """Explore the tiers' budgets, the request rate, the recomputed share and the scheduler's mode."""
    model = fit_ttft()

    def draw(gpu: int, host: int, disk: int, rate: int, percent: int, mode: Mode) -> list[go.Figure]:
        budgets = {name: size * GB for name, size in zip(machine.budgets, (gpu, host, disk), strict=True)}
        tried = Machine(budgets, machine.rates, ratio=percent / 100, per_second=rate)
        run = replay(requests, tried, mode, prepared, seed, model)
        about = figures.about_machine(tried)
        drawn = figures.timeline([run], count=min(16, len(requests)), machine=about)
        return [drawn, figures.tiers_over_time(run, machine=about), figures.misses(run, machine=about)]

    sizes = [
        slider(f"{name} (GB)", round(size / GB), 0, max(64, round(size / GB))) for name, size in machine.budgets.items()
    ]
    rate, percent = slider("requests per second", round(machine.per_second), 1, 64), slider("recomputed (%)", 0, 0, 100)
    return explorer([*sizes, rate, percent, menu({v: k for k, v in figures.MODES.items()}, "mode")], draw)
