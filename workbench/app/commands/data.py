"""`workbench data`: a look at questions and passages."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from workbench import data as datasets
from workbench.app.console.text import plain
from workbench.core.errors import BadInput, printable
from workbench.core.utils.files import write_text
from workbench.data import Sample

NAME = "`lab`, `lab-hard`, `lab(hints=0)`, `needles`, `manuals`, a shipped name or a file; none: list the names"
PASSAGES = "Passages a question; those of a file are cut, or filled in from its other questions"
app = typer.Typer(add_completion=False)


@app.command()
def show_data(
    name: Annotated[str | None, typer.Argument(help=NAME)] = None,
    samples: Annotated[int, typer.Option(help="How many to take, at most")] = 3,
    seed: Annotated[int, typer.Option(help="Of the draw")] = 0,
    passages: Annotated[int | None, typer.Option(help=PASSAGES)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON record a line")] = False,
    out: Annotated[Path | None, typer.Option(help="Write them to this file (.jsonl), which is data like any")] = None,
) -> None:
    """Look at a data set, or write samples of it to a file."""
    if name is None:
        print("\n".join(datasets.names()))
        return
    if out is not None and (out.suffix != ".jsonl" or not out.absolute().parent.is_dir()):
        raise BadInput(f"out is {out}: a file that ends in .jsonl is needed, in a folder that is there")
    listed = datasets.load(name, samples, seed, passages)
    if out is not None:
        write_text(out, "".join(f"{json.dumps(sample.to_json(), ensure_ascii=False)}\n" for sample in listed))
        versions = [f"{package} {version}" for package, version in datasets.versions(name).items()]
        print(", ".join([f"{printable(str(out))}: {len(listed)} samples", *versions]))
        return
    console = Console(highlight=False)
    for sample in listed:
        if as_json:
            line = json.dumps(sample.to_json(), ensure_ascii=False)
            print("".join(x if x.isprintable() else json.dumps(x)[1:-1] for x in line))
        else:
            _show(console, sample)


def _show(console: Console, sample: Sample) -> None:
    facts = [sample.id, sample.kind, f"passages: {len(sample.ctxs)}"]
    console.print(f"[dim]{plain(' · '.join(fact for fact in facts if fact))}[/]")
    for passage in sample.ctxs:
        mark = "*" if passage.title in sample.supporting_titles else " "
        line = f"{mark} [bold]{plain(passage.title)}[/]  {plain(passage.text)}"
        console.print(line, overflow="ellipsis", no_wrap=True)
    console.print(f"[bold]Q[/] {plain(sample.question)}\n[bold]A[/] {plain(' | '.join(sample.answers))}\n")
