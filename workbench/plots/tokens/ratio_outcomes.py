"""What is recomputed as the ratio grows, and what the model then answers.

And of one prompt with its passages in many orders: how near a method stays to full attention.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots
from torch import Tensor

from workbench.data.prompt_view import Reading
from workbench.metrics.answers import exact_match
from workbench.plots.attention.masks import names
from workbench.plots.marks.elements import block_axis, block_edges, frame_slider, frames, steps
from workbench.plots.marks.lines import profile, profiles
from workbench.plots.marks.styles import SELECTORS, reuse_name, selector_looks
from workbench.plots.marks.theme import BLUE, GREEN, INK, RED, RULE, Texts, finish


@dataclass(frozen=True)
class RatioOutcome:
    """`rows` recomputed, the answer, and whether it is right (None where no answer is known)."""

    rows: np.ndarray
    answer: str
    right: bool | None


Outcomes = Mapping[float, Mapping[str, RatioOutcome]]  # ratio → selector → what came out


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
    """Draw what is recomputed as the ratio grows, by every method, and what the model then answers.

    `outcomes` ratio → method → outcome. A slider over the ratios; a line a method with the tokens it computes again,
    its answer at the end. `tokens` and `block_of` are of the whole prompt; the question is left out of the picture.
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
    """Return the cells of all methods, and their answers with a sign."""
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
    """Return what came out of every (ratio, selector): rows [R] of `choices`, the answer, and whether it is right."""
    outcomes: dict[float, dict[str, RatioOutcome]] = {ratio: {} for ratio, _ in choices}
    for ((ratio, spec), rows), answer in zip(choices.items(), answers, strict=True):
        outcomes[ratio][spec] = RatioOutcome(rows.numpy(), answer, is_right(answer, expected))
    return outcomes


def is_right(answer: str, expected: Sequence[str]) -> bool | None:
    """Return whether an answer is one of those `expected`; None where none is known."""
    return bool(exact_match(answer, expected)) if expected else None


def enough(outcomes: Outcomes, answer: str) -> dict[str, float | None]:
    """Return the smallest ratio from which every selector gives `answer`; None where none does."""
    smallest: dict[str, float | None] = {}
    for ratio in sorted(outcomes):
        for spec, outcome in outcomes[ratio].items():
            if smallest.get(spec) is None:
                smallest[spec] = ratio if outcome.answer == answer else None
    return smallest


def answers_by_ratio(
    view: Reading,
    outcomes: Outcomes,
    *,
    full: str,
    reuse: str,
    ratio: float,
    about: str,
    prepare: str = "after_system",
) -> go.Figure:
    """Draw what is recomputed and answered by ratio; `full` and `reuse` are answers; the slider stands at `ratio`.

    `prepare`: how the passages were cached, which names the reuse.
    """
    steps = list(outcomes)
    needed = {spec: least for spec, least in enough(outcomes, full).items() if least is not None}
    first = min(needed, key=needed.__getitem__, default=None)
    sign = {True: " ✓", False: " ✗", None: ""}[is_right(full, view.answers)]
    least = f"{SELECTORS.name_of(first)} at {needed[first]:.0%}" if first else ""
    then = f"The least that gives the answer of full attention: {least}." if first else ""
    named = {step: {SELECTORS.name_of(spec): outcome for spec, outcome in outcomes[step].items()} for step in steps}
    return ratios(
        named,
        view.tokens,
        view.block_of,
        active=steps.index(ratio) if ratio in steps else 0,
        marked=view.supporting,
        colours=selector_looks(outcomes[steps[0]])["colours"],
        title="What is recomputed, and what the model answers",
        notice=f"“{view.question}” Full attention answers “{full}”{sign}, {reuse_name(prepare)} “{reuse}”. {then}",
        caption=f"{view.source}. {about}, greedy decoding.",
    )


def answer_records(outcomes: Outcomes) -> list[dict[str, Any]]:
    """Return outcomes as records {ratio, selector, answer, right, tokens}."""
    records = []
    for ratio, by_selector in outcomes.items():
        for spec, outcome in by_selector.items():
            answered = {"answer": outcome.answer, "right": outcome.right, "tokens": len(outcome.rows)}
            records.append({"ratio": ratio, "selector": SELECTORS.name_of(spec), **answered})
    return records


Records = Sequence[Mapping[str, Any]]  # of `PromptPage.records`


def by_order(records: Records, *, about: str) -> go.Figure:
    """Draw by selector and ratio in how many orders the answer is that of full attention, and the mean KL."""
    specs = [spec for spec in dict.fromkeys(record["select"] for record in records) if spec not in ("none", "all")]
    panels = [
        profile("same answer as full attention", curves(records, specs, "same"), "share recomputed", percent=True),
        profile("KL from full attention (nats)", curves(records, specs, "kl"), "share recomputed"),
    ]
    orders = len({record["order"] for record in records})
    over = "One order" if orders == 1 else f"Mean over {orders} orders"
    return profiles(
        [replace(panel, x={**panel.x, "tickformat": ".0%"}) for panel in panels],
        title="How much the order of the passages decides",
        caption=f"{over} of the passages{', some without one of them' * (orders > 1)}; at 0%: reuse alone. {about}.",
        **selector_looks(specs),
    )


def curves(records: Records, specs: Sequence[str], measure: str) -> list[dict[str, Any]]:
    """Return means {name, at, mean} by selector and ratio of "kl" or "same" (answers); at 0 stands reuse alone."""
    table = pd.DataFrame(records).assign(same=[float(record["answer"] == record["full"]) for record in records])
    points = []
    for spec in specs:
        part = pd.concat([table[table["select"] == "none"].assign(ratio=0.0), table[table["select"] == spec]])
        means = part.groupby("ratio")[measure].mean()
        points += [{"name": SELECTORS.name_of(spec), "at": ratio, "mean": float(mean)} for ratio, mean in means.items()]
    return points


def found(records: Records) -> dict[str, Any]:
    """Return the numbers of a grid: orders, combinations, and the share of equal answers by selector."""
    table = pd.DataFrame(records)
    same = (table.answer == table.full).groupby(table["select"]).mean()
    return {
        "orders": int(table.order.nunique()),
        "combinations": len(table),
        "same_answer": {spec: float(share) for spec, share in same.items()},
        "same_first_token": float(table.agree.mean()),
        "kl_mean": float(table.kl.mean()),
        "flops_share": float((table.flops / table.flops_full).mean()),
    }
