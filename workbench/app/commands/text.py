"""Texts that several commands print."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


def plain(text: str) -> str:
    """One line of text, safe to print among rich's markup."""
    return " ".join(text.split()).replace("[", r"\[")


def with_interval(row: Mapping[str, Any], score: str) -> str:
    """Return a score with its 95% interval, among rich's markup; `row` has {score, score_low, score_high}.

    A score that was not measured, or that no question has, is a dash.
    """
    if row[score] is None or row[score] != row[score]:  # nan: of a table
        return "[dim]–[/]"
    return f"{row[score]:.3f} [dim]{row[score + '_low']:.3f}–{row[score + '_high']:.3f}[/]"


def show(as_json: bool, line: str, report: RenderableType, wrap: bool = True) -> None:
    """Print the line of JSON or the report for people; without `wrap`, a long line stays one line."""
    if as_json:
        print(line)
    else:
        Console(highlight=False).print(report, soft_wrap=not wrap)


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None] | None]:
    """Show a bar with the time left on stderr where a person watches; call what it yields with (done, of how many)."""
    if not sys.stderr.isatty():
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
