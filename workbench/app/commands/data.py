"""`workbench data`: a look at questions and passages."""

import json
from typing import Annotated

import typer
from rich.console import Console

from workbench import data as datasets
from workbench.app.commands.text import plain
from workbench.data import Sample

NAME = "`lab`, `needles`, a shipped name or a file; none: list the names"
app = typer.Typer()


@app.command()
def show_data(
    name: Annotated[str | None, typer.Argument(help=NAME)] = None,
    samples: Annotated[int, typer.Option(help="How many to show")] = 3,
    seed: Annotated[int, typer.Option(help="Of the draw")] = 0,
    passages: Annotated[int | None, typer.Option(help="Passages a question")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON record a line")] = False,
) -> None:
    """Look at a data set."""
    if name is None:
        print("\n".join(datasets.names()))
        return
    console = Console(highlight=False)
    for sample in datasets.load(name, samples, seed, passages):
        if as_json:
            print(json.dumps(sample.to_json(), ensure_ascii=False))
        else:
            _show(console, sample)


def _show(console: Console, sample: Sample) -> None:
    facts = [sample.id, sample.kind, f"passages: {len(sample.ctxs)}"]
    console.print(f"[dim]{' · '.join(fact for fact in facts if fact)}[/]")
    for passage in sample.ctxs:
        mark = "*" if passage.title in sample.supporting_titles else " "
        line = f"{mark} [bold]{plain(passage.title)}[/]  {plain(passage.text)}"
        console.print(line, overflow="ellipsis", no_wrap=True)
    console.print(f"[bold]Q[/] {plain(sample.question)}\n[bold]A[/] {plain(' | '.join(sample.answers))}\n")
