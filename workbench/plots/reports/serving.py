"""Requests served from tiers of blocks, from the events of the scheduler and of the store (`store.events`)."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from workbench.experiments.simulation.store_replay import Machine, ReplayResult
from workbench.methods.serving import Ticket
from workbench.plots.marks import chart
from workbench.plots.marks.elements import steps, swatches
from workbench.plots.marks.lines import Panel, Series, line_chart
from workbench.plots.marks.styles import SCHEDULERS, SeriesStyle
from workbench.plots.marks.theme import BLUE, GREEN, MUTED, ORANGE, RED, SKY, finish, panel_titles
from workbench.results import HERE
from workbench.store.events import Event

STAGES = {"wait": MUTED, "load": ORANGE, "encode": RED, "prefill": BLUE, "decode": SKY}
TIERS = (BLUE, GREEN, ORANGE, MUTED)  # fastest first
HELD = "%{x:.2f} s: %{y:.2f} GB"
MODES = {mode: SCHEDULERS.name_of(mode) for mode in ("sync", "request", "layer")}


def about_machine(machine: Machine) -> str:
    """Describe a replay's tiers and timings, for a caption."""
    tiers = [
        f"{name} {size / 1e9:g} GB" + (f" at {machine.rates[name] / 1e9:g} GB/s" if machine.rates[name] < 1e30 else "")
        for name, size in machine.budgets.items()
        if size
    ]
    return (
        f"Simulated clock: {', '.join(tiers)}; passages of {machine.passage} tokens, question of {machine.question}, "
        f"{machine.ratio:.0%} recomputed, {machine.per_second:g} requests per second, batches of at most "
        f"{machine.batch}. The scheduler, lookups and block moves are real; pass times come from a model fitted to GPU "
        "measurements of a Llama-3.1-8B shape."
    )


def timeline(runs: Sequence[ReplayResult], *, first: int = 0, count: int = 16, machine: str) -> go.Figure:
    """Draw what requests wait for, one panel per scheduler mode (FusionRAG, figure 11)."""
    names = [ticket.name for ticket in runs[0].tickets[first : first + count]]
    fig = make_subplots(
        len(runs), 1, shared_xaxes=True, vertical_spacing=0.09, subplot_titles=[MODES[run.mode] for run in runs]
    )
    begins = {run.mode: min(ticket.arrived for ticket in run.tickets[first : first + count]) for run in runs}
    for row, run in enumerate(runs, 1):
        waits = [_waited(ticket) for ticket in run.tickets if ticket.name in names]
        for stage, colour in STAGES.items():
            spans = [event for event in run.events if event.what == stage and event.request in names]
            spans = waits if stage == "wait" else spans
            if not spans:
                continue
            data = [[1e3 * event.seconds, event.tier or event.detail or "–"] for event in spans]
            fig.add_bar(
                y=[names.index(event.request) for event in spans],
                x=[1e3 * event.seconds for event in spans],
                base=[1e3 * (event.at - begins[run.mode]) for event in spans],
                orientation="h",
                marker={"color": colour, "line": {"width": 0}},
                customdata=data,
                hovertemplate=f"request %{{y}}, {stage}: %{{customdata[0]:.1f}} ms, %{{customdata[1]}}<extra></extra>",
                showlegend=False,
                row=row,
                col=1,
            )
    happened = {event.what for run in runs for event in run.events}
    swatches(fig, {stage: colour for stage, colour in STAGES.items() if stage in happened})
    ticks = {"tickvals": list(range(len(names))), "ticktext": [str(int(name) + 1) for name in names]}
    fig.update_yaxes(title_text="request", autorange="reversed", showgrid=False, **ticks)
    fig.update_xaxes(title_text="milliseconds", row=len(runs), col=1)
    fig.update_layout(barmode="overlay", bargap=0.25)
    panel_titles(fig)
    return finish(
        fig,
        height=(26 + 13 * count) * len(runs),
        above=56,
        legend=28,
        title="Timeline of requests",
        caption=f"Requests {first + 1} to {first + count} of {len(runs[0].tickets)}. {machine}",
    )


def _waited(ticket: Ticket) -> Event:
    """Return the span from arrival to the first token; the part that no stage covers is waiting."""
    return Event(
        "wait", ticket.arrived, (ticket.first or 0.0) - ticket.arrived, request=ticket.name, detail="to the first token"
    )


def tiers_over_time(run: ReplayResult, *, machine: str) -> go.Figure:
    """Draw lookups by tier and the tiers' content, over time."""
    names = [row["tier"] for row in run.tiers]
    looks = {name: SeriesStyle(colour, name=name) for name, colour in zip(names, TIERS, strict=False)}
    looked: dict[str, list[float]] = {name: [] for name in (*names, "missed")}
    for event in run.events:
        if event.what in ("hit", "miss"):
            looked[event.tier if event.what == "hit" else "missed"].append(event.at)
    lines = []
    for name, moments in looked.items():
        look = looks.get(name, SeriesStyle(RED, dash="dash"))
        counts = list(range(1, len(moments) + 1))
        lines.append(Series(name, moments, counts, hover="%{x:.2f} s: %{y:,}", look=look, mode="lines"))
    clock = [at for at, _ in run.held]
    held = [
        Series(name, clock, [size[name] / 1e9 for _, size in run.held], hover=HELD, look=look, mode="lines")
        for name, look in looks.items()
    ]
    panels = [
        Panel("cumulative lookups", lines, {"title_text": "seconds"}, {"rangemode": "tozero"}),
        Panel("GB held", held, {"title_text": "seconds"}, {"rangemode": "tozero"}),
    ]
    return line_chart(
        panels,
        title="Block lookups by tier, and tier usage",
        caption=machine,
    )


def heat(run: ReplayResult, *, most: int = 60, machine: str) -> go.Figure:
    """Draw the most requested blocks: the tier where each request found them."""
    names = [row["tier"] for row in run.tiers]
    asked = Counter(event.key for event in run.events if event.what in ("hit", "miss"))
    blocks = [key for key, _ in asked.most_common(most)]
    grid = np.full((len(blocks), len(run.tickets)), np.nan)
    for event in run.events:
        if event.what in ("hit", "miss") and event.key in blocks and event.request:
            place = names.index(event.tier) if event.what == "hit" else len(names)
            grid[blocks.index(event.key), int(event.request)] = place
    colours = [*TIERS[: len(names)], RED]
    fig = go.Figure(
        go.Heatmap(
            z=grid,
            colorscale=steps(colours),
            zmin=-0.5,
            zmax=len(colours) - 0.5,
            showscale=False,
            xgap=0.3,
            ygap=0.3,
            hovertemplate="block %{y}, request %{x}<extra></extra>",
        )
    )
    swatches(fig, dict(zip((*names, "missed"), colours, strict=True)))
    fig.update_xaxes(title_text="request", showgrid=False)
    fig.update_yaxes(title_text="blocks, most requested first", autorange="reversed", showgrid=False)
    return finish(
        fig,
        height=320,
        above=30,
        legend=8,
        title="Lookups by block and tier",
        caption=f"The {len(blocks)} of {len(asked):,} most requested blocks; each mark is a lookup, coloured by the "
        f"tier that held the block. {machine}",
    )


def misses(run: ReplayResult, *, machine: str) -> go.Figure:
    """Draw misses by their reason."""
    reasons = Counter(event.detail.split(":")[0] for event in run.events if event.what == "miss").most_common()
    rows = pd.DataFrame(reasons or [("none", 0)], columns=["reason", "value"]).assign(source=HERE)
    figure = chart.bars(rows, y="reason", axis="look-ups", form=",", title="Cache misses by reason", caption=machine)
    assert figure is not None  # there is a row
    return figure
