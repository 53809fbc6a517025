"""The table that `workbench sweep` prints."""

import os
import sys
from pathlib import Path

import pandas as pd
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from workbench.app.console.text import in_full, labels, not_noted, plain, with_interval
from workbench.app.console.trial_report import SCORES

WIDE = 200  # columns of the table with all intervals
SWEPT = SCORES | {"nll": "gold nll", "kl": "KL from full", "agree": "agreement"}


def show_sweep(table: pd.DataFrame, varied: list[str], out: Path) -> None:
    """Print a line a trial, with the fields that are `varied`, and where the tables lie."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else WIDE)
    if len(table):
        for note in filter(None, map(not_noted, table["note"].unique())):
            console.print(f"[bold yellow]{plain(note)}[/]")
        console.print(Group(*(_narrow if console.width < WIDE else _swept)(table, varied)))
    console.print(f"[dim]95% intervals · results in {plain(str(out))}[/]")


def _narrow(rows: pd.DataFrame, varied: list[str]) -> list[RenderableType]:
    """Return the table for narrow terminals: what is varied as one label, scores without their intervals."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    measured = [score for score in SWEPT if score in rows]
    table.add_column("", no_wrap=True)
    for name in (*measured, "n", "tokens", "TTFT, ms"):
        table.add_column(name, justify="right", no_wrap=True)
    every = rows[rows["kind"] == "all"]
    names = [", ".join("–" if pd.isna(x) else str(x) for x in each) for each in every[varied or ["way"]].to_numpy()]
    short = labels(names)
    for name, (_, row) in zip(names, every.iterrows(), strict=True):
        means = ["–" if pd.isna(row[score]) else f"{row[score]:.3f}" for score in measured]
        costs = [str(row["n"]), f"{row['rows_computed']:.0f}", f"{row['ttft_p50'] * 1e3:.1f}"]
        table.add_row(Text(short[name]), *means, *costs)
    return [table, *in_full(short)]


def _swept(rows: pd.DataFrame, varied: list[str]) -> list[RenderableType]:
    table = Table(box=None, pad_edge=False)
    names = varied or ["way"]
    for name in names:
        table.add_column(name)
    measured = [score for score in SWEPT if score in rows]
    for name in (*(SWEPT[score] for score in measured), "n", "tokens", "TTFT"):
        table.add_column(name, justify="right", no_wrap=True)
    for _, row in rows[rows["kind"] == "all"].iterrows():
        means = [with_interval(row, score) for score in measured]
        costs = [str(row["n"]), f"{row['rows_computed']:.0f}", f"{row['ttft_p50'] * 1e3:.1f} ms"]
        table.add_row(*("" if pd.isna(row[name]) else plain(str(row[name])) for name in names), *means, *costs)
    return [table]
