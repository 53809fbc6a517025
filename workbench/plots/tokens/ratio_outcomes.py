"""Recomputed tokens and answers as the ratio grows."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Unpack

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots
from torch import Tensor

from workbench.metrics.answers import exact_match
from workbench.plots.attention.masks import names
from workbench.plots.marks.elements import block_axis, block_edges, frame_slider, frames, steps
from workbench.plots.marks.theme import BLUE, GREEN, INK, RED, RULE, Texts, finish


@dataclass(frozen=True)
class RatioOutcome:
    """An outcome: `rows` recomputed, the answer, and whether it is right (None if unknown)."""

    rows: np.ndarray
    answer: str
    right: bool | None


Outcomes = Mapping[float, Mapping[str, RatioOutcome]]  # ratio → selector → outcome


def ratios(
    outcomes: Outcomes,
    tokens: Sequence[str],
    block_of: np.ndarray,
    *,
    colours: Mapping[str, str] | None = None,
    marked: Collection[int] = (),
    active: int = 0,
    **texts: Unpack[Texts],
) -> go.Figure:
    """Draw every method's recomputed tokens and answer as the ratio grows.

    `outcomes` ratio → method → outcome. A slider over ratios; one line per method with its recomputed tokens and its
    answer. `tokens` and `block_of` cover the whole prompt; the question is not drawn.
    """
    drawn = list(outcomes)
    methods = list(outcomes[drawn[0]])
    count = int((block_of < block_of.max()).sum())
    pictures = {f"{ratio:.0%}": _traces(outcomes[ratio], methods, count) for ratio in drawn}
    cells, answers = pictures[f"{drawn[active]:.0%}"]
    fig = make_subplots(1, 2, column_widths=[0.7, 0.3], horizontal_spacing=0.01, shared_yaxes=True)
    labels = np.broadcast_to(np.array(names(tokens, block_of)[:count], dtype=object), (len(methods), count))
    heat = go.Heatmap(cells).update(
        x=np.arange(count),
        y=methods,
        zmin=-0.5,
        zmax=len(methods) - 0.5,
        colorscale=steps([(colours or {}).get(method, BLUE) for method in methods]),
        **{"showscale": False, "hoverongaps": False, "xgap": 0, "ygap": 8},
        customdata=labels,
        hovertemplate="%{customdata}<br>recomputed<extra>%{y}</extra>",
    )
    fig.add_trace(heat, row=1, col=1)
    place = {"x": [0] * len(methods), "y": methods, "mode": "text", "textposition": "middle right"}
    written = go.Scatter(answers).update(**place, showlegend=False, hovertemplate="%{text}<extra>%{y}</extra>")
    fig.add_trace(written, row=1, col=2)
    fig.frames = frames(pictures)
    context = block_of[:count]
    for edge in block_edges(context):
        fig.add_vline(edge, line={"color": RULE, "width": 0.8}, row=1, col=1)
    fig.update_xaxes(block_axis(context, marked, question=False), title_text="token (by block)", row=1, col=1)
    fig.update_xaxes(visible=False, range=[-0.02, 1], row=1, col=2)
    fig.update_yaxes(autorange="reversed", showgrid=False, ticks="", showline=False)
    fig.update_yaxes(showticklabels=False, row=1, col=2)
    fig.update_layout(sliders=[frame_slider(list(pictures), active, "recomputed: ", pad=48)])
    left = 24 + 7 * max(map(len, methods))
    return finish(fig, height=34 * len(methods), above=14, below=128, left=left, right=28, **texts)


def _traces(outcomes: Mapping[str, RatioOutcome], methods: Sequence[str], count: int) -> tuple[go.Heatmap, go.Scatter]:
    """Return the cells of all methods, and their answers with a mark for right or wrong."""
    z = np.full((len(methods), count), np.nan, dtype=np.float32)
    for i, method in enumerate(methods):
        rows = outcomes[method].rows
        z[i, rows[rows < count]] = i
    signs = {True: ("✓", GREEN), False: ("✗", RED), None: ("", INK)}
    answers = [(*signs[outcomes[method].right], outcomes[method].answer[:34]) for method in methods]
    texts = [f"{sign} {answer}".strip().replace("<", "&lt;") for sign, _, answer in answers]
    font = {"color": [colour for _, colour, _ in answers], "size": 12}
    return go.Heatmap(z=z), go.Scatter(text=texts, textfont=font)


def outcomes_of(
    choices: Mapping[tuple[float, str], Tensor], answers: Sequence[str], expected: Sequence[str]
) -> dict[float, dict[str, RatioOutcome]]:
    """Return the outcome of every (ratio, selector): rows [R] of `choices`, the answer, and whether it is right."""
    outcomes: dict[float, dict[str, RatioOutcome]] = {ratio: {} for ratio, _ in choices}
    for ((ratio, spec), rows), answer in zip(choices.items(), answers, strict=True):
        outcomes[ratio][spec] = RatioOutcome(rows.numpy(), answer, is_right(answer, expected))
    return outcomes


def is_right(answer: str, expected: Sequence[str]) -> bool | None:
    """Return whether an answer is among `expected`; None if there are none."""
    return bool(exact_match(answer, expected)) if expected else None


def smallest_ratios(outcomes: Outcomes, answer: str) -> dict[str, float | None]:
    """Return each selector's smallest ratio that gives `answer`, or None.

    Ratio 1 is excluded: it recomputes everything, which is full attention.
    """
    smallest: dict[str, float | None] = {}
    for ratio in sorted(outcomes):
        for spec, outcome in outcomes[ratio].items():
            if smallest.setdefault(spec, None) is None and ratio < 1 and outcome.answer == answer:
                smallest[spec] = ratio
    return smallest
