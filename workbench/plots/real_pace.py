"""How fast a real model's methods were measured on one GPU, beside what was asked for."""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from workbench.plots.table import table

QUESTIONS, METHODS, MINUTES, TOKENS = 500, 15, 10, 1500  # asked for: so many of both in so many minutes of one H200


def asked_minutes(group: Mapping[str, Any]) -> float:
    """Return the minutes that the questions and methods asked for take at a group's pace."""
    return QUESTIONS * METHODS * group["seconds"] / group["pairs"] / 60


def pace_table(groups: Sequence[Mapping[str, Any]]) -> go.Figure:
    """Draw the pace of every group of the results file `real-pace`, the longest prompts first."""
    ordered = sorted(groups, key=lambda group: -group["tokens"])
    rows = [
        [
            f"{group['model']} on {group['data']}, {group['group']}",
            f"{group['tokens']:,.0f}",
            f"{group['questions']:,} × {group['methods']}",
            f"{group['seconds']:,.0f}",
            f"{group['pairs'] / group['seconds']:.0f}",
            f"{asked_minutes(group):.1f}",
        ]
        for group in ordered
    ]
    processes = " and ".join(sorted({f"{group['processes']}" for group in ordered}))
    return table(
        [
            "measured",
            "tokens",
            "questions × methods",
            "seconds",
            "pairs a second",
            f"minutes for {QUESTIONS} × {METHODS}",
        ],
        rows,
        widths=[2.6, 0.8, 1.6, 0.9, 1.2, 1.7],
        title="How long a measurement takes",
        notice=pace_sentence(ordered),
        caption=f"{', '.join(sorted({group['device'] for group in ordered}))}, {processes} processes on one GPU, from "
        "the first one's begin to the last one's end: prefill with selection, teacher-forced scores of both answers. A "
        "pair is a question and a method. Groups that were measured in one go.",
    )


def pace_sentence(groups: Sequence[Mapping[str, Any]]) -> str:
    """Say whether what was asked for is done in time at the pace of prompts at least as long, or of the longest."""
    long = [group for group in groups if group["tokens"] >= TOKENS] or [max(groups, key=lambda each: each["tokens"])]
    slowest = max(long, key=asked_minutes)
    took = asked_minutes(slowest)
    told = "within" if took <= MINUTES else "beyond"
    return (
        f"{QUESTIONS} questions by {METHODS} methods take {took:.1f} minutes at the slowest pace of prompts of "
        f"{min(group['tokens'] for group in long):,.0f} tokens and more ({slowest['data']}), {told} the {MINUTES} "
        "minutes of one GPU that were asked for."
    )
