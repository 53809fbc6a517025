"""Critical tokens: which tokens a method recomputes, where they stand, and how the answer changes with the ratio.

Selectors are given as specs (`query_guided(layers=all)`) and shown by name. `about` says model, preparation and device.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Unpack
from unicodedata import combining, east_asian_width

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots
from torch import Tensor

from workbench.data.prompt_view import Reading
from workbench.metrics.answers import exact_match
from workbench.plots.controls import button, frame_slider, frames, menu, switch
from workbench.plots.elements import block_axis, block_edges, steps
from workbench.plots.findings import judged
from workbench.plots.lines import profile, profiles
from workbench.plots.looks import SELECTORS, reuse_name, selector_looks
from workbench.plots.masks import names, shown
from workbench.plots.theme import BLUE, GREEN, INK, MUTED, PAPER, RED, RULE, Texts, clear, finish
from workbench.plots.token_axes import TokenAxes, counts_tokens

COLUMNS, LINE = 112, 23  # characters a line of text, px a line
MOST = 4000  # tokens that are drawn at once, of a longer prompt
MONO = "'DejaVu Sans Mono', Menlo, Consolas, monospace"
SCALE = [[0, PAPER], [0.5, "#fdf0d5"], [0.8, "#f9cf84"], [1, "#f0a125"]]


@dataclass(frozen=True)
class Choice:
    """`scores` [T] of the context's tokens (-inf: never chosen), `rows` the positions that are recomputed."""

    scores: np.ndarray
    rows: np.ndarray


def coloured(
    choices: Mapping[str, Choice],
    tokens: Sequence[str],
    block_of: np.ndarray,
    *,
    marked: Collection[int] = (),
    first: int = 0,
    most: int = MOST,
    **texts: Unpack[Texts],
) -> go.Figure:
    """Draw the prompt's own text, every token coloured by a selector's score, the chosen ones framed.

    `tokens` [N] text of all tokens of the prompt, `block_of` [N] their blocks, the last of which is the question. The
    colour is the rank of a token's score among all that can be chosen. A menu picks one of `choices`. Of a longer
    prompt, at most `most` tokens from token `first` on are drawn, and the notice says so.
    """
    part = slice(min(first, max(0, len(tokens) - 1)), first + most)
    words, of_words = list(tokens[part]), block_of[part]
    widths = [max(1, width_of(token)) for token in words]
    line, column, heads = _layout(widths, of_words)
    last = int(block_of.max())
    height = max(3 * LINE, LINE * (max(line) + 1))
    looks = {name: _look(choice, len(tokens), part) for name, choice in choices.items()}
    fig = go.Figure()
    fig.add_bar(
        orientation="h",
        y=line,
        x=widths,
        base=column,
        width=0.86,
        showlegend=False,
        hovertemplate="%{customdata}<extra></extra>",
        **next(iter(looks.values())),
    )
    font = {"family": MONO, "size": 11, "color": INK}
    letters = {"x": column, "y": line, "text": [shown(token, 40) for token in words], "textfont": font}
    # after the boxes of all tokens, so that none covers letters
    fig.add_scatter(**letters, mode="text", textposition="middle right", hoverinfo="skip", showlegend=False)
    fig.update_traces(cliponaxis=False)
    buttons = []
    for name, look in looks.items():
        marker, edge = look["marker"], look["marker"]["line"]
        changed = {"marker.color": [marker["color"]], "customdata": [look["customdata"]]}
        changed |= {f"marker.line.{key}": [edge[key]] for key in ("color", "width")}
        buttons.append({"label": name, "method": "restyle", "args": [changed, [0]]})
    choice_of = menu(buttons, height, 8, active=0, font={"size": 12, "color": MUTED})
    fig.update_layout(bargap=0, barmode="overlay", updatemenus=[choice_of])
    fig.update_xaxes(visible=False, range=[-0.6, COLUMNS])
    names_of = {b: "question" if b == last else f"{b}{'★' if b in marked else ''}" for b in heads}
    ticks = {"tickvals": list(heads.values()), "ticktext": list(names_of.values()), "ticks": ""}
    fig.update_yaxes(range=[max(line) + 0.6, -0.6], showgrid=False, showline=False, **ticks)
    for begin in list(heads.values())[1:]:
        fig.add_hline(begin - 0.5, line={"color": RULE, "width": 0.7})
    if len(words) < len(tokens):
        texts["notice"] += f" Shown: tokens {part.start:,} to {part.start + len(words) - 1:,} of {len(tokens):,}."
    counts_tokens(fig, TokenAxes(len(tokens), len(tokens), text=True, first=part.start))
    return finish(fig, height=height, above=46, below=12, right=16, **texts)


def width_of(token: str) -> int:
    """Return how many columns a token takes: two a letter that is twice as wide (Chinese, Japanese, Korean), none a
    letter that is joined to the one before."""
    return sum((east_asian_width(x) in "WF") + (combining(x) == 0) for x in token)


def _layout(lengths: Sequence[int], block_of: np.ndarray) -> tuple[list[int], list[int], dict[int, int]]:
    """Return line and column of every token, and the first line of every block; a block begins a line."""
    line: list[int] = []
    column: list[int] = []
    first: dict[int, int] = {}
    at, here = 0, -1
    for length, block in zip(lengths, block_of.tolist(), strict=True):
        if block not in first or at + length > COLUMNS:
            here, at = here + 1, 0
            first.setdefault(block, here)
        line.append(here)
        column.append(at)
        at += length
    return line, column, first


def _look(choice: Choice, count: int, part: slice) -> dict[str, Any]:
    """Return colours, frames and hover texts of `part` of all `count` tokens."""
    scores = np.full(count, -np.inf)
    scores[: len(choice.scores)] = choice.scores
    finite = np.isfinite(scores)
    rank = np.zeros(count)
    if finite.any():
        order = np.argsort(np.argsort(scores[finite], kind="stable"), kind="stable")
        rank[finite] = order / max(finite.sum() - 1, 1)
    picked = np.isin(np.arange(count), choice.rows)
    notes = []
    for i in range(count)[part]:
        if i >= len(choice.scores):
            notes.append(f"position {i}: the question is always computed")
        elif not finite[i]:
            notes.append(f"position {i}: " + ("recomputed" if picked[i] else "never chosen"))
        else:
            chosen = "recomputed" if picked[i] else "reused"
            notes.append(f"position {i}: {chosen}<br>score {scores[i]:.3g}, above {rank[i]:.0%} of the others")
    framed = picked[part]
    edge = {"color": np.where(framed, INK, PAPER).tolist(), "width": np.where(framed, 1.6, 0).tolist()}
    marker = {"color": rank[part].round(3), "colorscale": SCALE, "cmin": 0, "cmax": 1, "line": edge}
    return {"marker": marker, "customdata": notes}


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


def agreement(matrices: Mapping[str, np.ndarray], names: Sequence[str], **texts: Unpack[Texts]) -> go.Figure:
    """Draw how far methods choose the same tokens: measure → [M, M] shares from 0 to 1; a menu picks the measure."""
    fig = go.Figure()
    columns = [name.replace(" (", "<br>(").replace(": ", "<br>") for name in names]
    for i, matrix in enumerate(matrices.values()):
        fig.add_heatmap(
            z=np.where(np.eye(len(names), dtype=bool), np.nan, matrix).astype(np.float32),
            x=columns,
            y=list(names),
            zmin=0,
            zmax=1,
            colorscale=[[0, PAPER], [1, clear(BLUE, 0.75)]],
            **{"showscale": False, "hoverongaps": False, "xgap": 2, "ygap": 2},
            visible=i == 0,
            texttemplate="%{z:.0%}",
            hovertemplate="%{y}<br>%{x}<br>%{z:.1%} in common<extra></extra>",
        )
    height = 46 * len(names)
    buttons = [button(label, [other == label for other in matrices]) for label in matrices]
    fig.update_layout(updatemenus=[switch(buttons, height, 8)])
    fig.update_xaxes(showgrid=False, ticks="", showline=False, tickangle=0)
    fig.update_yaxes(autorange="reversed", showgrid=False, ticks="", showline=False)
    return finish(fig, height=height, above=46, below=56, left=24 + 7 * max(map(len, names)), **texts)


def chosen_text(
    view: Reading, scores: Mapping[str, Tensor], choices: Mapping[str, Tensor], *, ratio: float, about: str
) -> go.Figure:
    """Draw the text of one prompt as every selector scores it [T], and frame the rows [R] that it chooses."""
    answers = f"({', '.join(view.answers)}) " if view.answers else ""
    return coloured(
        {SELECTORS.name_of(spec): Choice(scores[spec].numpy(), choices[spec].numpy()) for spec in scores},
        view.tokens,
        view.block_of,
        marked=view.supporting,
        title=f"What is recomputed at {ratio:.0%}",
        notice=f"“{view.question}” ★ marks the passages that the answer {answers}needs. Compare what the question "
        "looks for with what merely deviates.",
        caption=f"{view.source}. {about}. Colour: rank of the score; framed: recomputed; the question always is.",
    )


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
    from_then = f"gives the answer of full attention from {needed[first]:.0%} on." if first else ""
    then = f"{SELECTORS.name_of(first)} {from_then}" if first else ""
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


def first_tenth(records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the mean of the first stretch of blocks by name: `records` as of `metrics.selection.places`."""
    offsets = [r for r in records if r["by"] == "offset"]
    first = min(r["at"] for r in offsets)
    return {r["name"]: r["mean"] for r in offsets if r["at"] == first}


def evenness(offsets: Sequence[Mapping[str, Any]]) -> str:
    """Say whether CacheBlend favours the head of a block and FusionRAG's choice is more even, as figure 8 shows them.

    `offsets`: the records of `metrics.selection.places` by position in the block. "" where one of both is missing.
    """
    shares = {
        name: [r["mean"] for r in offsets if r["name"] == SELECTORS.name_of(name)]
        for name in ("kv_deviation", "query_guided")
    }
    if not all(shares.values()):
        return ""
    heads = {name: values[0] / max(sum(values) / len(values), 1e-9) for name, values in shares.items()}
    holds = heads["kv_deviation"] > 1 and abs(heads["query_guided"] - 1) < abs(heads["kv_deviation"] - 1)
    claim = "CacheBlend favours the start of chunks and question-guided selection is more even (figure 8)"
    said = " and ".join(f"{heads[name]:.1f} times ({SELECTORS.name_of(name)})" for name in heads)
    return f"There they choose {said} their mean. {judged('FusionRAG', claim, holds)}"


def where_chosen(
    records: Sequence[Mapping[str, Any]], selectors: Collection[str], *, sample: str, about: str
) -> go.Figure:
    """Draw where the chosen tokens stand: `records` as of `metrics.selection.places`; `sample` says which prompts."""
    heads = first_tenth(records)
    most, least = max(heads, key=heads.__getitem__), min(heads, key=heads.__getitem__)
    offsets, ranks = ([r for r in records if r["by"] == by] for by in ("offset", "rank"))
    across = "position in the block (0 start, 1 end)"
    return profiles(
        [
            profile("by position in the block", offsets, across, "share recomputed", percent=True),
            profile("by rank of the block", ranks, "rank of the block", percent=True),
        ],
        title="Where the chosen tokens stand",
        notice=f"Of the first tenth of a block, {most} recomputes {heads[most]:.0%}, {least} {heads[least]:.0%}. An "
        f"even choice would be a flat line. {evenness(offsets)}",
        caption=f"{sample}; mean and 95% bootstrap interval. {about}.",
        lines=2,
        **selector_looks(selectors),
    )


def common_tokens(
    matrices: Mapping[str, np.ndarray], selectors: Collection[str], *, ratio: float, sample: str, about: str
) -> go.Figure:
    """Draw how far selectors agree: measure → [M, M]; the first measure is the share of the smaller choice."""
    names = [SELECTORS.name_of(spec) for spec in selectors]
    share = next(iter(matrices.values()))
    apart = np.where(np.eye(len(names), dtype=bool), np.nan, share)
    row, column = np.unravel_index(np.nanargmax(apart), apart.shape) if len(names) > 1 else (0, 0)
    return agreement(
        matrices,
        names,
        title="Tokens that two selectors have in common",
        notice=f"By chance two choices of {ratio:.0%} share {ratio:.0%}. The two that agree most here are {names[row]} "
        f"and {names[column]} ({apart[row, column]:.0%}).",
        caption=f"Mean over {sample}. {about}.",
    )
