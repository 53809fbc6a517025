"""Critical tokens: which tokens every selector recomputes, where they stand, and how the answer changes.

Selectors are given as specs (`query_guided(layers=all)`) and shown by name. `about` says model, preparation and device.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from torch import Tensor

from workbench.data.prompt_view import Reading
from workbench.metrics.answers import exact_match
from workbench.plots.chosen_tokens import Choice, RatioOutcome, agreement, coloured, ratios
from workbench.plots.lines import profile, profiles
from workbench.plots.looks import SELECTORS, selector_looks

Outcomes = Mapping[float, Mapping[str, RatioOutcome]]  # ratio → selector → what came out


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
    """Return what came out of every (ratio, selector): rows [R] of `choices`, the answer, and whether it is right.

    Without `expected` answers it is not known whether one is right.
    """
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
    view: Reading, outcomes: Outcomes, *, full: str, reuse: str, ratio: float, about: str
) -> go.Figure:
    """Draw what is recomputed and answered as the ratio grows.

    `full` and `reuse` are the answers of full attention and of Full Reuse; the slider stands at `ratio`.
    """
    steps = list(outcomes)
    needed = {spec: least for spec, least in enough(outcomes, full).items() if least is not None}
    first = min(needed, key=needed.__getitem__, default=None)
    sign = {True: " ✓", False: " ✗", None: ""}[is_right(full, view.answers)]
    then = (
        f"{SELECTORS.name_of(first)} gives the answer of full attention from {needed[first]:.0%} on." if first else ""
    )
    named = {step: {SELECTORS.name_of(spec): outcome for spec, outcome in outcomes[step].items()} for step in steps}
    return ratios(
        named,
        view.tokens,
        view.block_of,
        active=steps.index(ratio) if ratio in steps else 0,
        marked=view.supporting,
        colours=selector_looks(outcomes[steps[0]])["colours"],
        title="What is recomputed, and what the model answers",
        notice=f"“{view.question}” Full attention answers “{full}”{sign}, Full Reuse “{reuse}”. {then}",
        caption=f"{view.source}. {about}, greedy decoding.",
    )


def answer_records(outcomes: Outcomes) -> list[dict[str, Any]]:
    """Return outcomes as records {ratio, selector, answer, right, tokens}."""
    return [
        {
            "ratio": ratio,
            "selector": SELECTORS.name_of(spec),
            "answer": outcome.answer,
            "right": outcome.right,
            "tokens": len(outcome.rows),
        }
        for ratio, by_selector in outcomes.items()
        for spec, outcome in by_selector.items()
    ]


def first_tenth(records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the mean of the first stretch of blocks by name: `records` as of `metrics.selection.places`."""
    offsets = [r for r in records if r["by"] == "offset"]
    first = min(r["at"] for r in offsets)
    return {r["name"]: r["mean"] for r in offsets if r["at"] == first}


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
        "even choice would be a flat line.",
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
