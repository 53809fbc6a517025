"""What the commands print alike."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


def plain(text: str) -> str:
    """One line of text, safe to print among rich's markup."""
    return " ".join(text.split()).replace("[", r"\[")


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None] | None]:
    """A bar with the time left on stderr where a person watches, else nothing: tell it (done, of how many)."""
    if not sys.stderr.isatty():
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
