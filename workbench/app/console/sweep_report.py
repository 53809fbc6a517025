"""The table that `workbench sweep` prints."""

import os
import sys
from pathlib import Path

import pandas as pd
from rich.console import Console, Group, RenderableType
from rich.table import Table

from workbench.app.console.text import in_full, labels, not_noted, plain, with_interval
from workbench.app.console.trial_report import SCORES, unknown_text
from workbench.metrics.measures import MEASURES

WIDE = 200  # columns of the table with all intervals
RANKED = ("kl", "em", "contains", "f1", "nll", "agree")  # order in which a narrow terminal shows them
SWEPT = (*SCORES, "nll", "kl", "agree")


def show_sweep(table: pd.DataFrame, varied: list[str], out: Path) -> None:
    """Print one line per trial with the `varied` fields, the tables' folder, and the next command."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else WIDE)
    if len(table):
        asked = {(str(row.get("model", "")), str(row.get("data", ""))): None for row in table.to_dict("records")}
        for note in filter(None, [*map(not_noted, table["note"].unique()), *(unknown_text(*one) for one in asked)]):
            console.print(f"[bold yellow]{plain(note)}[/]")
        drawn, measured = _trials(table, varied, console.width)
        console.print(Group(*drawn))
        short = {score: MEASURES[score].short for score in measured}
        if console.width >= WIDE:
            said = "with 95% intervals"
        else:
            meanings = [f"{short[score]}: {MEASURES[score].words}" for score in measured if score not in SCORES]
            said = "; ".join(
                [
                    *meanings,
                    f"95% intervals: {', '.join(short[score] for score in measured if measured[score]) or 'none'}",
                ]
            )
            said += "; all: --json"
        console.print(f"[dim]{said}[/]")
    console.print(f"[dim]Results in {plain(str(out))}[/]")
    if len(table) and table["kind"].eq("all").sum() > 1:
        console.print(f"[dim]Next: workbench compare {plain(str(out))} (differences, with intervals)[/]")


def _trials(rows: pd.DataFrame, varied: list[str], width: int) -> tuple[list[RenderableType], dict[str, bool]]:
    """Return one line per trial, and its scores, each with whether its interval is shown.

    In a narrow terminal, varied fields become one label, and as many scores and intervals are shown as fit.
    """
    narrow = width < WIDE
    every = rows[rows["kind"] == "all"]
    names = [["–" if pd.isna(x) else str(x) for x in each] for each in every[varied or ["way"]].to_numpy()]
    short = labels([", ".join(each) for each in names]) if narrow else {}
    room = width - max(map(len, short.values()), default=0)
    measured = _that_fit(rows, room) if narrow else {score: True for score in SWEPT if score in rows}
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0) if narrow else (0, 1))
    for name in [""] if narrow else varied or ["way"]:
        table.add_column(name, no_wrap=narrow)
    for name in (*(MEASURES[score].short for score in measured), "n", "tokens", "TTFT, ms"):
        table.add_column(name, justify="right", no_wrap=True)
    for each, row in zip(names, every.to_dict("records"), strict=True):
        label = [short[", ".join(each)]] if narrow else each
        means = [
            with_interval(row, score) if whole else MEASURES[score].format_value(row[score])
            for score, whole in measured.items()
        ]
        table.add_row(
            *map(plain, label), *means, str(row["n"]), f"{row['rows_computed']:.0f}", f"{row['ttft_p50'] * 1e3:.1f}"
        )
    return [table, *in_full(short)], measured


def _that_fit(rows: pd.DataFrame, width: int) -> dict[str, bool]:
    """Return the scores that fit next to n, tokens and TTFT, in order, each with whether its interval fits."""
    there = [score for score in RANKED if score in rows]
    room = width - sum(len(f"{name} ") for name in ("n  ", "tokens", "TTFT, ms")) - 1
    wide, found = len("100.0% 83.9% to 100.0% "), dict[str, bool]()
    for whole, scores in ((False, there[:2]), (True, there[:2]), (False, there[2:])):
        for score in scores:
            alone = max(len(MEASURES[score].short), len("100.0%")) + 1
            needed = (wide if whole else alone) - (alone if score in found else 0)
            if needed <= room:
                room, found[score] = room - needed, whole
    return {score: found[score] for score in SWEPT if score in found}
