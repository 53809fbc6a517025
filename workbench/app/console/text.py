"""Texts and progress displays of commands."""

import gc
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain, pairwise, repeat
from textwrap import fill
from threading import Event, Thread
from time import monotonic
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

from workbench.app.console import at_once
from workbench.core.errors import printable
from workbench.core.utils.stages import stages_reported_to
from workbench.metrics.measures import MEASURES

EVERY = 60  # seconds between lines
SOON = (1.0, *range(8, 60, 10))  # seconds after the start, for lines in the first minute


def plain(text: str) -> str:
    """Return one line of text, safe in a terminal and within rich markup."""
    return printable(" ".join(text.split())).replace("[", r"\[")


def wrap_sentence(text: str, width: int = 80) -> str:
    """Wrap a sentence at `width` characters between words; continuation lines are indented."""
    return fill(text, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def copied(command: str, width: int = 80) -> str:
    r"""Wrap a command at `width` characters for a shell: each line but the last ends in \."""
    return wrap_sentence(command, width - 2).replace("\n", " \\\n") if len(command) > width else command


_noted: dict[str, None] = {}  # notes printed so far, in order


def note(message: Warning | str, *_: Any, **__: Any) -> str:
    """Format a warning for stderr, as `warnings.formatwarning`; "" if it was already printed."""
    text = printable(str(message))
    known = text in _noted
    _noted[text] = None
    return "" if known else f"note: {text}\n"


def not_noted(text: str) -> str:
    """Return the part of a record's note that was not printed as a warning."""
    for known in _noted if sys.stdout.isatty() and sys.stderr.isatty() else ():
        text = text.replace(known, "").strip()
    return text


LABEL = 20  # characters of a method's name at 80 columns
SHORTER = (
    (r"^block, ", ""),
    (r"with_neighbours\((?:n=)?(\d+)[^)]*\)", r"\1 near"),
    (r"\bafter_system\b", "system"),
    (r"\b(\w+)_guided\b", r"\1"),
    (r" at (\d+%)", r" \1"),
)


def labels(names: Iterable[str], width: int = LABEL) -> dict[str, str]:
    """Return distinct labels of at most `width` characters for names.

    Long names are abbreviated ("10 near, query 15%"), then cut in the middle, and numbered if equal.
    """
    made: dict[str, str] = {}
    for name in dict.fromkeys(names):
        label = name
        for pattern, shorter in SHORTER if len(name) > width else ():
            label = re.sub(pattern, shorter, label)
        tried = [_cut(label, width), *(f"{_cut(label, width - 4)} ({n})" for n in range(2, 2 + len(made)))]
        made[name] = next(each for each in tried if each not in made.values())
    return made


def in_full(labels: Mapping[str, str]) -> list[str]:
    """Return lines that expand the shortened `labels`; none if none was shortened."""
    whole = [f"[dim]{plain(label)}: {plain(name)}[/]" for name, label in labels.items() if name != label]
    return ["", "[dim]in full[/]", *whole] if whole else []


def _cut(text: str, width: int) -> str:
    end = width // 3
    return text if len(text) <= width else f"{text[: width - end - 1]}…{text[-end:]}"


def with_interval(row: Mapping[str, Any], score: str) -> str:
    """Return a score with its 95% interval, among rich's markup; `row` has {score, score_low, score_high}.

    A score that was not measured, or that no question has, is a dash; that of one question has no interval.
    """
    measure, (value, low, high) = MEASURES[score], (row[score + end] for end in ("", "_low", "_high"))
    known = value is not None and value == value  # not nan, of a table
    if not known:
        return "[dim]–[/]"
    alone = row.get("n" if score in ("em", "f1", "contains") else "compared") == 1
    return measure.format_value(value) + ("" if alone else f" [dim]{measure.ends(low, high)}[/]")


def show(as_json: bool, line: str, report: RenderableType, wrap: bool = True) -> None:
    """Print the line of JSON, or the report; without `wrap`, long lines are not broken."""
    if as_json:
        print(line)
    else:
        Console(highlight=False).print(report, soft_wrap=not wrap)


class Pace:
    """The current stage of work, its progress, and the estimated time left."""

    def __init__(self, what: str, clock: Callable[[], float] = monotonic):
        self.what, self.clock = what, clock
        self.begun = self.since = self.at = clock()
        self.first = 0
        self.counted: tuple[int, int] | None = None
        self.stage = ""

    def start_stage(self, stage: str) -> None:
        """Start a stage; reset the count if the previous one was complete."""
        self.stage = stage
        if self.counted is not None and self.counted[0] >= self.counted[1]:
            self.counted = None

    def __call__(self, done: int, total: int) -> None:
        """Take how much is done, of how much."""
        self.at = self.clock()
        if self.counted is None:
            self.first, self.since = done, self.at
        self.counted = done, total

    def current_stage(self) -> str:
        """Return the current stage, e.g. "a trial: loading lab-full"."""
        stage = self.stage or ("" if self.counted else "loading")
        return f"{self.what}: {stage}" if stage else self.what

    def time_left(self) -> str:
        """Return ", 5 min left", or "" if that is not known yet."""
        done, total = self.counted or (0, 0)
        if done <= self.first or done >= total:
            return ""
        now, parts = self.clock(), done - self.first
        each = max(
            (self.at - self.since) / parts, (now - self.since) / (parts + 1)
        )  # the current part may be a slow one
        return f", {duration(max(each * (total - done) - (now - self.at), 1))} left"


class ProgressLines(Pace):
    """Prints progress lines: one after each of `SOON` seconds, then one per minute."""

    def __init__(self, what: str, say: Callable[[str], None], clock: Callable[[], float] = monotonic):
        super().__init__(what, clock)
        self.say, self.last, self.soon = say, self.begun, list(SOON)

    def __call__(self, done: int, total: int) -> None:
        """Take how much is done, of how much."""
        super().__call__(done, total)
        self.tick()

    def tick(self) -> None:
        """Print a progress line if one is due."""
        now = self.clock()
        spent = now - self.begun
        due = [at for at in self.soon if spent >= at]
        if now - self.last < EVERY and not due:
            return
        self.soon = self.soon[len(due) :]
        self.last = now
        comma = ", " if self.stage or not self.counted else ": "
        counted = "{} of {} ".format(*self.counted) if self.counted else ""
        self.say(f"{self.current_stage()}{comma}{counted}after {duration(spent)}{self.time_left()}")

    def watch(self, ended: Event) -> None:
        """Tick until the work has ended."""
        for seconds in chain((after - before for before, after in pairwise((0, *SOON))), repeat(EVERY)):
            if ended.wait(seconds):
                return
            self.tick()


def duration(seconds: float) -> str:
    """Return "45 s", "12 min" or "3 h 20 min"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


@contextmanager
def importing() -> Iterator[None]:
    """Disable garbage collection during the block's imports, whose many objects stay anyway.

    Ctrl-C ends a command's process within the block.
    """
    searched, armed = gc.isenabled(), at_once.arm()
    gc.disable()
    try:
        yield
    finally:
        if armed:
            at_once.disarm()
        if searched:
            gc.enable()


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar with the time left on stderr; yield a callback (done, total).

    Non-interactive sessions, such as a job's log, get lines instead: after `SOON` seconds, then one per minute.
    """
    shown = _bar if sys.stderr.isatty() and os.environ.get("TERM") != "dumb" else _lines
    with shown(what) as (count, begins), stages_reported_to(begins):
        yield count


@contextmanager
def _lines(what: str) -> Iterator[tuple[Callable[[int, int], None], Callable[[str], None]]]:
    told, ended = ProgressLines(what, lambda line: print(printable(line), file=sys.stderr, flush=True)), Event()
    Thread(target=told.watch, args=(ended,), daemon=True).start()
    try:
        yield told, told.start_stage
    finally:
        ended.set()


@contextmanager
def _bar(what: str) -> Iterator[tuple[Callable[[int, int], None], Callable[[str], None]]]:
    pace = Pace(what)
    columns = (TextColumn("{task.description}"), BarColumn(16), PaceColumn(pace))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(plain(pace.current_stage()), total=None)

        def begins(stage: str) -> None:
            pace.start_stage(stage)
            shown()

        def counts(done: int, total: int) -> None:
            pace(done, total)
            shown()

        def shown() -> None:
            done, total = pace.counted or (0, None)
            bar.tasks[0].total = total  # may be None, which `update` would ignore
            bar.update(task, completed=done, description=plain(pace.current_stage()))

        yield counts, begins


class PaceColumn(ProgressColumn):
    """Shows progress and time left, as "3 of 40, 12 s left"; at first the time since the start."""

    def __init__(self, pace: Pace):
        super().__init__()
        self.pace = pace

    def render(self, task: Task) -> Text:
        """Return the current text."""
        del task
        if self.pace.counted:
            return Text("{} of {}".format(*self.pace.counted) + self.pace.time_left())
        spent = self.pace.clock() - self.pace.begun
        return Text(f"after {duration(spent)}" if spent >= SOON[0] else "")
