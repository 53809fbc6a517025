"""The table that `workbench sweep` prints."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console, Group, RenderableType
from rich.table import Table

from workbench.app.console.text import in_full, labels, not_noted, plain, with_interval
from workbench.app.console.trial_report import SCORES, unknown_text

WIDE = 200  # columns of the table with all intervals
READ = "nll: loss of the gold answer; kl: from full attention; agree: tokens as under full attention"
SWEPT = SCORES | {"nll": "gold nll", "kl": "KL from full", "agree": "agreement"}


def show_sweep(table: pd.DataFrame, varied: list[str], out: Path) -> None:
    """Print a line a trial, with the fields that are `varied`, where the tables lie, and what to run next."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else WIDE)
    if len(table):
        asked = {(str(row.get("model", "")), str(row.get("data", ""))): None for row in table.to_dict("records")}
        for note in filter(None, [*map(not_noted, table["note"].unique()), *(unknown_text(*one) for one in asked)]):
            console.print(f"[bold yellow]{plain(note)}[/]")
        console.print(Group(*_trials(table, varied, narrow=console.width < WIDE)))
    wide = console.width >= WIDE
    said = "95% intervals" if wide else f"{READ}; 95% intervals: in a terminal {WIDE} columns wide"
    console.print(f"[dim]{said} · results in {plain(str(out))}[/]")
    if len(table) and table["kind"].eq("all").sum() > 1:
        console.print(f"[dim]Next: workbench compare {plain(str(out))} (differences, with intervals)[/]")


def _trials(rows: pd.DataFrame, varied: list[str], narrow: bool) -> list[RenderableType]:
    """Return a line a trial; narrow: what is varied as one label, and scores without their intervals."""
    measured = [score for score in SWEPT if score in rows]
    every = rows[rows["kind"] == "all"]
    names = [["–" if pd.isna(x) else str(x) for x in each] for each in every[varied or ["way"]].to_numpy()]
    short = labels([", ".join(each) for each in names]) if narrow else {}
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0) if narrow else (0, 1))
    for name in [""] if narrow else varied or ["way"]:
        table.add_column(name, no_wrap=narrow)
    for name in (*(score if narrow else SWEPT[score] for score in measured), "n", "tokens", "TTFT, ms"):
        table.add_column(name, justify="right", no_wrap=True)
    for each, row in zip(names, every.to_dict("records"), strict=True):
        label = [short[", ".join(each)]] if narrow else each
        means = [_mean(row, score) if narrow else with_interval(row, score) for score in measured]
        table.add_row(
            *map(plain, label), *means, str(row["n"]), f"{row['rows_computed']:.0f}", f"{row['ttft_p50'] * 1e3:.1f}"
        )
    return [table, *in_full(short)]


def _mean(row: Mapping[str, Any], score: str) -> str:
    return "–" if pd.isna(row[score]) else f"{row[score]:.3f}"
