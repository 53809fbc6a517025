"""The columns of a leaderboard's tables: headings and texts."""

from typing import Any

from workbench.experiments.leaderboard import HIGHER
from workbench.experiments.leaderboard.board import Board
from workbench.experiments.leaderboard.standings import Standing
from workbench.experiments.leaderboard.timed_apart import SAME
from workbench.metrics.measures import MEASURES
from workbench.metrics.paired import count_differing, too_few

COSTS = ("charged", "ttft", "storage", "preprocess")  # columns that apply to every method


def head() -> dict[str, str]:
    """Return the columns of `cells` with their headings."""
    named = {"rank": "rank", "method": "method", "average": "average rank"}
    named |= {name: MEASURES[name].short for name in HIGHER}
    costs = {
        "charged": "charged",
        "ttft": "TTFT, ms",
        "speedup": "speedup, timed apart",
        "storage": "storage, MB/1,000 tokens",
        "preprocess": "preprocess, ms/token",
    }
    return named | costs | {"front": "front"}


def cells(entry: Standing) -> dict[str, tuple[float | None, str]]:
    """Return a sort key and a text for every column of `head`; "–" if unknown."""
    found: dict[str, tuple[float | None, str]] = {
        "rank": _cell(entry.rank, "d"),
        "method": (None, entry.method),
        "average": _cell(entry.average_rank, ".2f"),
        "charged": _cell(entry.charged, ".1%"),
        "ttft": _cell(entry.ttft_ms, ",.1f"),
        "speedup": (None, "–") if entry.speedup is None else (entry.speedup, f"{entry.speedup:.1f}×"),
        "storage": _cell(entry.storage_mb, ",.2f"),
        "preprocess": _cell(entry.preprocess_ms, ".3f"),
        "front": (1.0, "yes") if entry.front else (0.0, ""),
    }
    for name in HIGHER:
        value = entry.scores[name][0] if name in entry.scores else None
        found[name] = value, MEASURES[name].format_value(value)
    return found


def measured_columns(board: Board) -> list[str]:
    """Return the columns of `head` that at least one method of a board has."""
    rows = [cells(entry) for entry in filter(None, (board.full, *board.entries, *board.over))]
    return [name for name in head() if name == "method" or any(row[name][0] is not None for row in rows)]


def costs(board: Board) -> list[str]:
    """Return sentences on costs that were not measured, and the device of speedups."""
    rows, known = [cells(entry) for entry in (*board.entries, *board.over)], measured_columns(board)
    gone = [head()[name] for name in COSTS if name not in known]
    lines = [f"not measured: {'; '.join(gone)}"] if gone else []
    part = [head()[name] for name in COSTS if name in known and any(row[name][0] is None for row in rows)]
    lines += [f"{'; '.join(part)}: – where a method's was not measured"] if part else []
    if board.timed:
        beside = f"full attention's TTFT over that of methods with an equal charge, within {SAME:.0%} of a prompt"
        lines.append(f"{head()['speedup']}: {beside}; {board.timed}")
    return lines


def ends(entry: Standing, name: str, of: str = "scores") -> str:
    """Return the interval of a measure's mean, or of its difference from full attention (`gaps`); "" if unknown.

    The mean of one question has none, and a difference of too few questions has their count in its place.
    """
    known: dict[str, tuple[float, float, float]] = getattr(entry, of)
    moved, n = entry.moved.get(name, (entry.n, entry.n))
    if name not in known or (of == "scores" and entry.n == 1):
        return ""
    if of == "gaps" and entry.fields.get("mode") == "full" and entry.fields.get("sparse", "none") == "none":
        return "–"  # full attention itself
    if of == "gaps" and too_few(moved):
        return count_differing(moved, n)
    return MEASURES[name].ends(*known[name][1:], gap=of == "gaps")


def gap(entry: Standing, name: str) -> str:
    """Return a measure's difference from full attention, with its interval; "–" if unknown."""
    if name not in entry.gaps:
        return "–"
    measure = MEASURES[name]
    return f"{measure.say_gap(entry.gaps[name][0])}{measure.unit} ({ends(entry, name, 'gaps')})"


def _cell(value: Any, form: str) -> tuple[float | None, str]:
    return (None, "–") if value is None or value != value else (float(value), f"{value:{form}}")
