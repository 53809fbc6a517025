"""The table of a sweep as `workbench sweep` prints it."""

import sys
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.table import Table

from workbench.app.console.text import plain, with_interval

SCORES = {"em": "exact match", "f1": "F1", "nll": "gold nll", "kl": "KL from full", "agree": "agreement"}


def show(table: pd.DataFrame, varied: list[str], out: Path) -> None:
    """Print a line a trial, with the fields that are `varied`, and where the tables lie."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    if len(table):
        for note in filter(None, table["note"].unique()):
            console.print(f"[bold yellow]{plain(note)}[/]")
        console.print(_table(table, varied))
    console.print(f"[dim]95% intervals · results in {plain(str(out))}[/]")


def _table(rows: pd.DataFrame, varied: list[str]) -> Table:
    table = Table(box=None, pad_edge=False)
    names = varied or ["way"]
    for name in names:
        table.add_column(name)
    measured = [score for score in SCORES if score in rows]
    for name in (*(SCORES[score] for score in measured), "n", "tokens computed", "time to first token"):
        table.add_column(name, justify="right")
    for _, row in rows[rows["kind"] == "all"].iterrows():
        means = [with_interval(row, score) for score in measured]
        costs = [str(row["n"]), f"{row['rows_computed']:.0f}", f"{row['ttft_p50'] * 1e3:.1f} ms"]
        table.add_row(*("" if pd.isna(row[name]) else plain(str(row[name])) for name in names), *means, *costs)
    return table
