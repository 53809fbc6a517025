"""What is computed again as the ratio grows, by every method, and what the model then answers."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from workbench.plots.masks import names as labels_of
from workbench.plots.theme import BLUE, FAINT, GREEN, INK, MUTED, RED, RULE, finish

ROW = 34  # px


@dataclass(frozen=True)
class Outcome:
    """`rows` computed again, the answer, and whether it is right (None where nobody knows)."""

    rows: np.ndarray
    answer: str
    right: bool | None


def ratios(
    outcomes: Mapping[float, Mapping[str, Outcome]], tokens: Sequence[str], block_of: np.ndarray, *, title: str,
    caption: str, notice: str, colours: Mapping[str, str] | None = None, marked: Collection[int] = (), active: int = 0,
) -> go.Figure:  # fmt: skip
    """`outcomes` ratio → method → outcome. A slider over the ratios; a line a method with the tokens it computes again,
    its answer at the end. `tokens` and `block_of` are of the whole prompt; the question is left out of the picture."""
    steps, count = list(outcomes), int((block_of < block_of.max()).sum())
    methods = list(outcomes[steps[0]])
    fig = make_subplots(1, 2, column_widths=[0.7, 0.3], horizontal_spacing=0.01, shared_yaxes=True)
    labels = np.broadcast_to(np.array(labels_of(tokens, block_of)[:count], dtype=object), (len(methods), count))
    shades = [(colours or {}).get(method, BLUE) for method in methods]
    scale = [[end / len(methods), shade] for i, shade in enumerate(shades) for end in (i, i + 1)]
    first, said = _traces(outcomes[steps[active]], methods, count)
    fig.add_heatmap(
        **first, x=np.arange(count), y=methods, zmin=-0.5, zmax=len(methods) - 0.5, colorscale=scale, showscale=False,
        xgap=0, ygap=8, customdata=labels, hovertemplate="%{customdata}<br>computed again<extra>%{y}</extra>",
        hoverongaps=False, row=1, col=1,
    )  # fmt: skip
    fig.add_scatter(
        **said, x=[0] * len(methods), y=methods, mode="text", textposition="middle right", showlegend=False,
        hovertemplate="%{text}<extra>%{y}</extra>", row=1, col=2,
    )  # fmt: skip
    fig.frames = [
        go.Frame(name=f"{step:.0%}", data=[go.Heatmap(cells), go.Scatter(said)], traces=[0, 1])
        for step in steps
        for cells, said in [_traces(outcomes[step], methods, count)]
    ]
    _axes(fig, block_of[:count], marked)
    fig.update_layout(sliders=[_slider([f"{step:.0%}" for step in steps], active)])
    return finish(
        fig, title=title, notice=notice, caption=caption, height=ROW * len(methods), above=14, below=128,
        left=24 + 7 * max(map(len, methods)), right=28,
    )  # fmt: skip


def _traces(outcomes: Mapping[str, Outcome], methods: Sequence[str], count: int) -> tuple[dict, dict]:
    z = np.full((len(methods), count), np.nan, dtype=np.float32)
    for i, method in enumerate(methods):
        z[i, outcomes[method].rows[outcomes[method].rows < count]] = i
    signs = {True: ("✓", GREEN), False: ("✗", RED), None: ("", INK)}
    answers = [outcomes[method] for method in methods]
    texts = [f"{signs[each.right][0]} {each.answer[:34]}".strip().replace("<", "&lt;") for each in answers]
    return {"z": z}, {"text": texts, "textfont": {"color": [signs[each.right][1] for each in answers], "size": 12}}


def _axes(fig: go.Figure, block_of: np.ndarray, marked: Collection[int]) -> None:
    inner = np.flatnonzero(np.diff(block_of)) + 0.5
    edges = np.concatenate(([-0.5], inner, [len(block_of) - 0.5]))
    for edge in inner:
        fig.add_vline(edge, line={"color": RULE, "width": 0.8}, row=1, col=1)
    numbers = [f"{i}{'★' if i in marked else ''}" for i in range(len(edges) - 1)]
    fig.update_xaxes(
        tickvals=(edges[:-1] + edges[1:]) / 2, ticktext=numbers, showgrid=False, ticks="",
        range=[-0.5, len(block_of) - 0.5], title_text="token (by block)", row=1, col=1,
    )  # fmt: skip
    fig.update_xaxes(visible=False, range=[-0.02, 1], row=1, col=2)
    fig.update_yaxes(autorange="reversed", showgrid=False, ticks="", showline=False)
    fig.update_yaxes(showticklabels=False, row=1, col=2)


def _slider(steps: Sequence[str], active: int) -> dict:
    play = {"mode": "immediate", "frame": {"duration": 0, "redraw": True}, "transition": {"duration": 0}}
    return {
        "active": active, "x": 0, "len": 1, "y": 0, "yanchor": "top", "pad": {"t": 48, "b": 0},
        "currentvalue": {"prefix": "computed again: ", "font": {"size": 13, "color": INK}}, "bgcolor": FAINT,
        "font": {"size": 11, "color": MUTED}, "bordercolor": RULE, "tickcolor": RULE,
        "steps": [{"label": step, "method": "animate", "args": [[step], play]} for step in steps],
    }  # fmt: skip
