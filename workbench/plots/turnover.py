"""What every prompt of a session takes: tokens that go through the model, and time to the first token."""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from workbench.plots.theme import BLUE, INK, ORANGE, SKY, finish, legend_over, panel_titles

# field -> name, colour, symbol, dash; panel by panel
TOKENS = {
    "tokens": ("full attention, nothing cached", INK, "circle", "solid"),
    "after_prefix": ("prefix cache", ORANGE, "diamond", "dash"),
    "computed": ("blocks: changed ones and the question", BLUE, "square", "solid"),
}
SECONDS = {
    "ttft_full": ("full attention, nothing cached", INK, "circle", "solid"),
    "ttft_anew": ("all blocks encoded anew", SKY, "triangle-up", "dot"),
    "ttft": ("blocks: changed ones and the question", BLUE, "square", "solid"),
}
HEIGHT = 300


def turnover(records: Sequence[Mapping[str, Any]], *, title: str, unit: str, caption: str, notice: str) -> go.Figure:
    """`records` as of `turnover.follow`, `unit` what they are (frame, turn); logarithmic from left to right panel."""
    fig = make_subplots(
        1, 2, horizontal_spacing=0.1, subplot_titles=["tokens through the model", "time to the first token (ms)"]
    )
    listed: set[str] = set()
    for column, (fields, scale, form) in enumerate(((TOKENS, 1, ",d"), (SECONDS, 1e3, ",.1f")), 1):
        for field, (name, colour, symbol, dash) in fields.items():
            points = [(r["step"] + 1, r[field] * scale, r["label"]) for r in records if r[field] is not None]
            fig.add_scatter(
                x=[x for x, *_ in points],
                y=[y for _, y, _ in points],
                customdata=[label for *_, label in points],
                name=name,
                legendgroup=name,
                showlegend=name not in listed,
                mode="lines+markers",
                line={"color": colour, "dash": dash, "width": 2},
                marker={"symbol": symbol, "size": 7, "color": colour},
                hovertemplate=f"{unit} %{{x}}: %{{y:{form}}}<br>%{{customdata}}<extra>{name}</extra>",
                row=1,
                col=column,
            )
            listed.add(name)
    fig.update_xaxes(title_text=unit, tickformat="d")
    ticks = [digit * 10**power for power in range(6) for digit in (1, 2, 5)]
    fig.update_yaxes(type="log", tickvals=ticks, ticktext=[f"{tick:,}" for tick in ticks])
    fig.update_layout(legend=legend_over(HEIGHT, 26))
    panel_titles(fig)
    return finish(fig, title=title, notice=notice, caption=caption, height=HEIGHT, above=66, below=58, left=72)
