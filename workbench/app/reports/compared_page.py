"""A comparison of runs as Markdown and HTML, from the same rows."""

import json
from collections.abc import Iterable, Sequence
from math import log10
from typing import Any, Literal

from rich import table as rich_table
from rich.console import Group

from workbench.app.console.text import in_full, labels, plain
from workbench.experiments.trials.run_differences import COSTS, RunComparison
from workbench.experiments.trials.runs import Run
from workbench.metrics import latency
from workbench.plots.marks.pages import inert, render
from workbench.plots.reports.run_differences import (
    RULE,
    difference_rows,
    differences,
    ends,
    measure_of,
    run_sentences,
)

COST = ("run", "cost", "value", "of the base", "range", "requests")
LONGEST, SHORT = 60, 15  # characters of a question or answer on a page; of an answer in the terminal
WIDTH = 80  # terminal columns
DIFFERENCES = ("run", "score", "value", "base", "difference", "95% interval", "questions")

Table = tuple[str, Sequence[str], list[Sequence[str]]]


def tables(found: RunComparison, brief: bool = False) -> Iterable[Table]:
    """Yield the tables of a comparison: title, head and rows of texts; `brief`: questions in full."""
    names = [run.name for run in found.runs]
    yield f"Differences from {found.base_name}", DIFFERENCES, [*difference_rows(found)]
    costs = [(row["run"], *_cost(row, name)) for row in found.costs() for name in COSTS if row[name] is not None]
    if costs:
        yield "Costs of a request", COST, [*costs]
    if differing := found.answers():
        head = ("question", "expected", found.base_name, *(run.name for run in found.others))
        longest = LONGEST * 4 if brief else LONGEST  # the terminal wraps them
        yield "Answers that differ", head, [[_cut(text, longest) for text in row] for row in differing]
    for title, what in (("Parameters that differ", found.parameters), ("Versions that differ", found.versions)):
        if what:
            yield title, ("", *names), [(key, *map(_text, values)) for key, values in what.items()]
        else:
            yield title, ("none",), []


def markdown(found: RunComparison) -> str:
    """Return the comparison as Markdown; users' texts are escaped."""
    parts = ["# Comparison of runs", *map(_md, run_sentences(found))]
    for title, head, rows in tables(found):
        parts.append(f"## {_md(title)}")
        if not rows:
            parts.append("none")
            continue
        lines = [head, ["---"] * len(head), *rows]
        parts.append("\n".join(f"| {' | '.join(_md(cell) for cell in line)} |" for line in lines))
    parts.append(_md(f"{_rule()} {_sources(found)}"))
    return "\n\n".join(parts) + "\n"


def page(found: RunComparison) -> str:
    """Return the comparison as one self-contained HTML page that follows the reader's theme."""
    texts = {"said": run_sentences(found), "tables": list(tables(found)), "sources": f"{_rule()} {_sources(found)}"}
    figure = inert(json.loads(differences(found, titled=False).to_json()))
    return render("compared", title="Comparison of runs", figure=figure, **texts)


def _cost(row: dict[str, Any], name: str) -> Sequence[str]:
    """Format a run's cost: name, value, ratio to the base, and for times their spread and number."""
    ratio = row[f"{name}_ratio"]
    of_base = "–" if ratio is None else f"{ratio:.2f}×"
    if name != "ttft_p50":
        return COSTS[name], _scaled(row[name]), of_base, "", ""
    cells = COSTS[name], _scaled(row[name] * 1e3), of_base
    if row["ttft_n"] is None:
        return *cells, "", ""
    if row["ttft_n"] < latency.CLAIMED:  # too few requests for a ratio
        return COSTS[name], _scaled(row[name] * 1e3), "–", "", f"{row['ttft_n']:.0f}"
    ends = latency.spread_ends(row | {"n": row["ttft_n"]})
    around = " to ".join(_scaled(end * 1e3, 3) for end in ends) if ends else ""
    return *cells, around, f"{row['ttft_n']:.0f}"


def _scaled(value: float, digits: int = 4) -> str:
    """Format a number with four digits, integers in full; from a million on as e.g. "9.327 G"."""
    power = min(4, int(log10(value) // 3)) if value >= 1e6 else 0
    scaled = value / 1000**power
    form = f",.{digits}g" if scaled < 10**digits - 0.5 else ",.0f"
    return f"{scaled:{form}}{('', '', ' M', ' G', ' T')[power]}"


def _cut(text: str, longest: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def _text(value: Any) -> str:
    return "–" if value is None else str(value)


def _md(text: str) -> str:
    """Escape a text for Markdown, in one line."""
    for sign in "\\`*_[]<>|#":
        text = text.replace(sign, f"\\{sign}")
    return " ".join(text.split())


def _rule() -> str:
    return f"The first sentences name {RULE}."


def _sources(found: RunComparison) -> str:
    return "Read from " + ", ".join(dict.fromkeys(run.source for run in found.runs if run.source)) + "."


FIRST = ("em", "kl")  # scores that a narrow terminal shows first
CHEAP = {"rows_computed": ("tokens", 1, ",.0f"), "ttft_p50": ("TTFT, ms", 1e3, ",.1f")}


def overview(found: RunComparison, width: int = WIDTH) -> Group:
    """Return the finding and one table: as many scores and costs of every run as fit `width` characters."""
    runs = [run for base in found.bases for run in (base, *(r for r in found.others if found.base_of[r.name] is base))]
    short = labels([run.name for run in runs])
    table = rich_table.Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True)
    columns = _that_fit({**_scores(found, runs), **_cheap(runs)}, width - max(map(len, short.values())))
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for at, run in enumerate(runs):
        table.add_row(plain(short[run.name]), *(cells[at][0] for cells in columns.values()))
        if run in found.others:
            table.add_row("", *(cells[at][1] for cells in columns.values()), style="dim")
    asked = ", ".join(dict.fromkeys(f"{each.n:,}" for each in found.differences if each.n))
    below = f"below a score: 95% interval of its difference from {found.base_name} (of percentages: points)"
    lines = [
        f"headlines: {RULE}",
        f"{below}{asked and f'; n = {asked}'}",
        f"settings that differ: {', '.join(found.parameters) or 'none'}",
        f"versions that differ: {', '.join(found.versions) or 'none'}",
        "all scores, costs, answers and settings: --details, or --html FILE",
    ]
    dim = [f"[dim]{plain(line)}[/]" for line in lines]
    return Group(*(f"[bold]{plain(line)}[/]" for line in run_sentences(found)), "", table, *in_full(short), *dim)


Cells = list[tuple[str, str]]  # per run: a value, and the line below it


def _scores(found: RunComparison, runs: Sequence[Run]) -> dict[str, Cells]:
    """Return the scores by their short names, with the intervals of the differences from the base."""
    told = {(each.score, each.run): each for each in found.differences}
    columns = {}
    for score in dict.fromkeys(each.score for each in found.differences):
        measure, cells = measure_of(score), []
        for run in runs:
            each, is_base = told.get((score, run.name)), found.base_of[run.name] is run
            value = each.one if each else run.scores[score] if is_base else None
            cells.append((measure.format_value(value), ends(each).partition(":")[0] if each else ""))
        columns[measure.short] = cells
    return columns


def _cheap(runs: Sequence[Run]) -> dict[str, Cells]:
    """Return the costs that all runs have."""
    known = {name: about for name, about in CHEAP.items() if all(run.scores.get(name) is not None for run in runs)}
    return {
        head: [(f"{run.scores[name] * scale:{form}}", "") for run in runs]
        for name, (head, scale, form) in known.items()
    }


def _that_fit(columns: dict[str, Cells], width: int) -> dict[str, Cells]:
    """Return the columns that fit: costs and the scores of FIRST before others."""
    first = [name for name, *_ in CHEAP.values()] + [measure_of(score).short for score in FIRST]
    kept = set()
    for name in sorted(columns, key=lambda name: name not in first):
        wide = 1 + max(len(text) for text in (name, *(part for cell in columns[name] for part in cell)))
        if wide <= width:
            width -= wide
            kept.add(name)
    return {name: cells for name, cells in columns.items() if name in kept}


def report(found: RunComparison) -> Group:
    """Return all differences in tables of 80 columns; several runs get a block of lines each."""
    parts: list[rich_table.Table | str] = [*(f"[bold]{plain(line)}[/]" for line in run_sentences(found)), ""]
    for title, head, rows in tables(found, brief=True):
        if not rows:
            parts += [f"[dim]{plain(title)}: none[/]", ""]
            continue
        if head[-1] == "questions" and len({row[-1] for row in rows}) == 1:
            title, head, rows = f"{title}, n = {rows[0][-1]}", head[:-1], [row[:-1] for row in rows]
        parts.append(f"[dim]{plain(title)}[/]")
        if head[0] == "run":
            parts += [*_by_run(head, rows), ""]
            continue
        table = rich_table.Table(box=None, pad_edge=False)
        asks = head[0] == "question"
        for number, name in enumerate(head):
            left, widest = number < 2 or asks, (SHORT if number else max(SHORT, WIDTH - len(head[1:]) * (SHORT + 2)))
            table.add_column(
                plain(name),
                justify="left" if left else "right",
                overflow="fold",
                max_width=widest if asks else None,
            )
        for row in rows:
            table.add_row(*map(plain, row))
        parts += [table, ""]
    return Group(*parts)


def _by_run(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterable[rich_table.Table | str]:
    """Yield every run's lines below its name, in columns of equal width; a single run has no name."""
    widths = [max(len(row[at]) for row in (head, *rows)) for at in range(1, len(head))]
    names = dict.fromkeys(row[0] for row in rows)
    for name in names:
        table = rich_table.Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), show_header=name == rows[0][0])
        for number, (column, width) in enumerate(zip(head[1:], widths, strict=True)):
            justify: Literal["left", "right"] = "right" if number else "left"
            table.add_column(plain(column), justify=justify, no_wrap=True, min_width=width)
        for row in rows:
            if row[0] == name:
                table.add_row(*map(plain, row[1:]))
        if len(names) > 1:
            yield f"[bold]{plain(name)}[/]"
        yield table
