"""`workbench claims`: the papers' claims, judged on any results."""

import json
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from workbench.app.console.text import importing, plain, progress
from workbench.core.errors import not_allowed

if TYPE_CHECKING:
    from workbench.experiments.judging import claims


PLACES = "Results to judge: `shipped` or a folder written with --out; repeatable"
app = typer.Typer(add_completion=False)


@app.command(epilog="Example: workbench claims --paper fusionrag --details")
def judge_claims(
    results: Annotated[list[str] | None, typer.Option(help=PLACES, show_default="shipped")] = None,
    paper: Annotated[
        str | None, typer.Option(help="block1, block2, fusionrag, bfla, compact, cacheblend, epic, newer or ours")
    ] = None,
    details: Annotated[
        bool, typer.Option("--details", help="Show the evidence for every verdict: numbers, intervals, n")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON list, with a record per claim and source")] = False,
) -> None:
    """Judge the papers' claims on any results: confirmed, contradicted, or still to be measured."""
    with progress("judging"):
        with importing():  # pandas and torch: not for help
            from workbench import results as tables
            from workbench.experiments.judging import claims

        if paper is not None and paper not in claims.papers():
            raise not_allowed("paper", paper, claims.papers())
        listed = [item for item in claims.items() if paper in (None, item.paper)]
        found = tables.read(results or [tables.SHIPPED])
        judged = claims.judge(found, listed)
    if as_json:
        print(json.dumps(claims.rows(judged), ensure_ascii=False))
        return
    console = Console(highlight=False)
    for source in found.sources:
        _show(console, source, listed, [one for one in judged if one.source == source], details)
    if not details:
        console.print("\n[dim]Evidence for each verdict, and what to measure: --details (one paper: --paper)[/]")


def _show(
    console: Console, source: str, listed: "list[claims.PaperItem]", judged: "list[claims.Judgement]", details: bool
) -> None:
    from workbench.experiments.judging import claims

    verdicts = {item.item: claims.verdict(one for one in judged if one.claim.item == item.item) for item in listed}
    console.print(f"{plain(source)}: {claims.count_verdicts(verdicts)}\n")
    for item in listed:
        title = f"{claims.papers()[item.paper]}, {item.name}: {plain(item.sentence)}"
        console.print(_line(verdicts[item.item], title))
        for one in judged if details else ():
            if one.claim.item == item.item:
                more = f"; {one.needs}" if one.number and one.needs else ""
                beside = "" if one.decides or not one.number else " (shown only)"
                console.print(_line(f"  {one.verdict}", f"{plain(one.text)}{plain(more)}{beside}"))
        if details and item.missing:
            console.print(_line("", plain(item.missing)))


def _line(verdict: str, text: str) -> Table:
    """Return a verdict and its text, wrapped to the terminal."""
    table = Table.grid(padding=(0, 1))
    table.add_column(width=14)
    table.add_column(overflow="fold")
    table.add_row(verdict, text)
    return table
