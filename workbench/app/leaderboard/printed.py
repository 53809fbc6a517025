"""What `workbench leaderboard` prints: 80 columns."""

from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from workbench.app.console.text import plain
from workbench.experiments.leaderboard.ranking import HIGHER, Board, Standing
from workbench.plots.reports import leaderboard as drawn

QUALITY = ("rank", "method", "average", *HIGHER)
COSTS = ("method", "charged", "ttft", "storage", "preprocess", "front")
SHORT = {"average": "avg", "preprocess": "prep, ms/tok", "storage": "MB/1,000", "method": ""}
KINDS = 4  # columns of kinds of question
NAME = 24  # letters of a method


def report(board: Board) -> Group:
    """Return a board as tables: quality, what the questions do not tell apart, costs, kinds of question."""
    ranked = f"{drawn.head()[board.by]}, {'higher' if HIGHER[board.by] else 'lower'} first"
    parts: list[RenderableType] = [
        f"[bold]{plain(board.title)}[/]: {board.n} questions by {ranked}",
        f"[dim]{plain(board.device)}[/]",
        _table(QUALITY, _listed(board), board.by),
        *_groups(board),
        "",
        _table(COSTS, _listed(board), ""),
    ]
    if any(entry.kinds for entry in board.entries):
        parts += ["", *_kinds(board)]
    if board.over:
        parts.append(f"over the budget: {plain(', '.join(entry.method for entry in board.over))}")
    return Group(*parts)


def _listed(board: Board) -> list[Standing]:
    return [*([board.full] if board.full else []), *board.entries, *board.over]


def _table(columns: Sequence[str], entries: Iterable[Standing], by: str) -> Table:
    names = drawn.head()
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for name in columns:
        if name == "method":
            table.add_column(SHORT["method"], max_width=NAME)
        else:
            table.add_column(SHORT.get(name, names[name]), justify="right")
    if by:
        table.add_column(f"{names[by]}, 95%", style="dim", justify="right")
    for entry in entries:
        row = drawn.cells(entry)
        interval = [drawn.ends(entry, by)] if by else []
        table.add_row(*(Text(_cut(row[name][1]) if name == "method" else row[name][1]) for name in columns), *interval)
    return table


def _groups(board: Board) -> list[str]:
    if not board.together:
        return ["every method is told apart from every other"]
    return [f"not told apart: {plain(', '.join(group))}" for group in board.together]


def _kinds(board: Board) -> list[RenderableType]:
    """Return a table of the measure that ranks, by kind of question."""
    kinds = list(dict.fromkeys(kind for entry in board.entries for kind in entry.kinds))
    found: list[RenderableType] = []
    for begin in range(0, len(kinds), KINDS):
        table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
        table.add_column(drawn.head()[board.by], max_width=NAME)
        for kind in kinds[begin : begin + KINDS]:
            table.add_column(plain(kind), justify="right", max_width=13)
        for entry in _listed(board):
            row = [drawn.written(entry.kinds.get(kind), board.by) for kind in kinds[begin : begin + KINDS]]
            table.add_row(Text(_cut(entry.method)), *row)
        found.append(table)
    return found


def _cut(name: str) -> str:
    return name if len(name) <= NAME else name[: NAME - 1] + "…"
