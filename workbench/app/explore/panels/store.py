"""Requests over tiers of blocks, replayed with other budgets, rates and modes: timeline, tiers and misses."""

from collections.abc import Sequence

import plotly.graph_objects as go
from ipywidgets import VBox

from workbench.app.explore.live import explorer, menu, slider
from workbench.experiments.latency.ttft_model import fitted
from workbench.experiments.simulation.simulated_machine import GB, Machine
from workbench.experiments.simulation.store_replay import replay
from workbench.methods.serving.scheduler import Mode
from workbench.plots.reports import serving as figures


def store_explorer(requests: Sequence[Sequence[int]], prepared: Sequence[int], machine: Machine, seed: int = 0) -> VBox:
    """Explore budgets of the three tiers, the rate of requests, the share recomputed and the mode of the scheduler."""
    model = fitted()

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
    rate, percent = slider("requests a second", round(machine.per_second), 1, 64), slider("recomputed (%)", 0, 0, 100)
    return explorer([*sizes, rate, percent, menu({v: k for k, v in figures.MODES.items()}, "mode")], draw)
