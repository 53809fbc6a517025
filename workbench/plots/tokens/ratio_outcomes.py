"""Recomputed tokens and answers as the ratio grows."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Unpack

import numpy as np
import plotly.graph_objects as go
from torch import Tensor

from workbench.metrics.answers import exact_match
from workbench.plots.attention.masks import names
from workbench.plots.marks.elements import block_axis, block_edges, frame_slider, frames, steps
from workbench.plots.marks.theme import BLUE, GREEN, INK, MUTED, RED, RULE, WIDTH, Texts, finish
from workbench.plots.reports.findings import join_words


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
    recovered: Mapping[str, str] | None = None,
    active: int = 0,
    **texts: Unpack[Texts],
) -> go.Figure:
    """Draw every method's recomputed tokens and answer as the ratio grows.

    `outcomes` ratio → method → outcome. A slider over ratios; one line per method with its recomputed tokens, its
    answer and its text in `recovered` (the smallest ratio that recovers full attention's answer). `tokens` and
    `block_of` cover the whole prompt; the question is not drawn.
    """
    drawn = list(outcomes)
    methods = list(outcomes[drawn[0]])
    labels = [method.replace(" (", "<br>(") for method in methods]
    count = int((block_of < block_of.max()).sum())
    pictures = {f"{ratio:.0%}": _traces(outcomes[ratio], methods, count) for ratio in drawn}
    cells, answers = pictures[f"{drawn[active]:.0%}"]
    hover = np.broadcast_to(np.array(names(tokens, block_of)[:count], dtype=object), (len(methods), count))
    heat = go.Heatmap(cells).update(
        x=np.arange(count),
        y=labels,
        zmin=-0.5,
        zmax=len(methods) - 0.5,
        colorscale=steps([(colours or {}).get(method, BLUE) for method in methods]),
        **{"showscale": False, "hoverongaps": False, "xgap": 0, "ygap": 8},
        customdata=hover,
        hovertemplate="%{customdata}<br>recomputed<extra>%{y}</extra>",
    )
    left, right = 24 + round(6.6 * max(len(line) for label in labels for line in label.split("<br>"))), 16
    width = WIDTH - left - right
    said = 20 + 7 * max(6, *(len(text) for _, written in pictures.values() for text in written.text))  # px
    beside = said + (76 if recovered is not None else 0)
    token = count / (width - beside)  # tokens per px
    columns = {"answer": count + 12 * token} | ({"recovered at": count + said * token} if recovered is not None else {})
    written = {"mode": "text", "textposition": "middle right", "showlegend": False}
    place = {"x": [columns["answer"]] * len(methods), "y": labels}
    fig = go.Figure([heat, go.Scatter(answers).update(**place, **written, hovertemplate="%{text}<extra>%{y}</extra>")])
    if recovered is not None:
        for method, label in zip(methods, labels, strict=True):
            own = {"x": columns["recovered at"], "y": label, "text": recovered.get(method, "–")}
            fig.add_annotation(**own, showarrow=False, xanchor="left")
    fig.frames = frames(pictures)
    for edge in block_edges(block_of[:count]):
        fig.add_vline(edge, line={"color": RULE, "width": 0.8})
    for heading, at in columns.items():
        head = {"y": 1, "yref": "paper", "yanchor": "bottom", "xanchor": "left", "font": {"size": 12, "color": MUTED}}
        fig.add_annotation(x=at, text=heading, showarrow=False, **head)
    axis = block_axis(block_of[:count], marked, question=False)
    fig.update_xaxes(axis | {"range": [-0.5, count + beside * token], "showline": False})
    fig.update_yaxes(autorange="reversed", showgrid=False, ticks="", showline=False)
    share = (width - beside) / width
    fig.update_layout(sliders=[frame_slider(list(pictures), active, "recomputed: ", pad=48, len=share)])
    title = {"text": "token (by block)", "x": share / 2, "xref": "paper", "xanchor": "center", "y": 0, "yref": "paper"}
    fig.add_annotation(**title, yanchor="top", yshift=-24, showarrow=False, font={"size": 12, "color": MUTED})
    return finish(fig, height=40 * len(methods), above=26, below=128, left=left, right=right, **texts)


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


def describe_recovery(smallest: Mapping[str, float | None], most: float) -> str:
    """Return a sentence on the selectors that recover full attention's answer.

    `smallest`: selector → its smallest ratio that does (`smallest_ratios`); `most`: the largest ratio tried.
    """
    names: dict[float, list[str]] = {}
    for share, name in sorted((share, name) for name, share in smallest.items() if share is not None):
        names.setdefault(share, []).append(name)
    if not names:
        return f"On this prompt, no selector recovers full attention's answer with up to {most:.0%} recomputed."
    (least, first), *later = names.items()
    verb = "recover" if len(first) > 1 else "recovers"
    said = (
        f"On this prompt, {join_words(first)} {verb} full attention's answer with {least:.0%} of the tokens recomputed"
    )
    said += "".join(f", {join_words(each)} with {share:.0%}" for share, each in later)
    others = len(smallest) - sum(map(len, names.values()))
    rest = "the other selector does" if others == 1 else f"the other {others} selectors do"
    return f"{said}; {rest} not with up to {most:.0%}." if others else f"{said}."
