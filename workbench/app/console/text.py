"""Texts that several commands print."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import Timer
from time import monotonic
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from workbench.core.errors import printable

EVERY = 60  # seconds between two lines
SOON = (2.0, 10.0)  # seconds from the start to the first lines


def plain(text: str) -> str:
    """One line of text, safe to print in a terminal and among rich's markup."""
    return printable(" ".join(text.split())).replace("[", r"\[")


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


class Told:
    """Says how much is done and how long the rest takes, as far as can be told from its pace.

    A line after `SOON` seconds, then one a minute.
    """

    def __init__(self, what: str, say: Callable[[str], None], clock: Callable[[], float] = monotonic):
        self.what, self.say, self.clock = what, say, clock
        self.begun = self.last = clock()
        self.first: int | None = None
        self.soon = list(SOON)

    def begins(self) -> None:
        """Say that work has begun, where nothing has been counted yet."""
        if self.first is None:
            self.say(f"{self.what}: loading")

    def __call__(self, done: int, total: int) -> None:
        now = self.clock()
        self.first = done if self.first is None else self.first
        due = [at for at in self.soon if now - self.begun >= at]
        if now - self.last < EVERY and not due:
            return
        self.soon = self.soon[len(due) :]
        self.last = now
        gained, spent = done - self.first, now - self.begun
        left = f", {duration(spent * (total - done) / gained)} left" if gained else ""
        self.say(f"{self.what}: {done} of {total} after {duration(spent)}{left}")


def duration(seconds: float) -> str:
    """Return "45 s", "12 min" or "3 h 20 min"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None] | None]:
    """Show a bar with the time left on stderr; call what it yields with (done, of how many).

    Where no person watches, as in the log of a job, lines stand for the bar: after 2 and 10 seconds, then every minute.
    """
    if not sys.stderr.isatty():
        told = Told(what, lambda line: print(printable(line), file=sys.stderr, flush=True))
        first = Timer(SOON[0], told.begins)
        first.daemon = True
        first.start()
        try:
            yield told
        finally:
            first.cancel()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(plain(what), total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
