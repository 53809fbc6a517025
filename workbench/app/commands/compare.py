"""`workbench compare`: runs, trials or models side by side."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, Group
from rich.table import Table

from workbench import models
from workbench.app import compared_page
from workbench.app.commands.options import OUTPUT, AsJson
from workbench.app.commands.text import plain, progress
from workbench.app.figure_files import write_figure
from workbench.core.errors import BadInput
from workbench.core.files import write_text
from workbench.experiments import runs as reading
from workbench.experiments.run_differences import RunComparison, compared
from workbench.experiments.runs import Run, of_record
from workbench.experiments.trial import Trial
from workbench.methods.presets import options
from workbench.plots.run_differences import differences, said

MODELS = "Where a RUN is a model"  # panel of `--help`

app = typer.Typer(add_completion=False)


@app.command(epilog="Example: workbench compare runs/full.json runs/block.json --html compared.html")
def compare(
    run: Annotated[
        list[str],
        typer.Argument(
            help="A record (`trial --out`), a folder (a sweep, results of a notebook), or a model, two or more"
        ),
    ],
    *,
    base: Annotated[str | None, typer.Option(help="The run that others are compared with, by name or number")] = None,
    score: Annotated[list[str] | None, typer.Option(help="Scores, as em, f1, nll, kl; else all in common")] = None,
    method: Annotated[str, typer.Option(help="Method that models answer with", rich_help_panel=MODELS)] = "full",
    source: Annotated[str, typer.Option("--data", help="Questions for models", rich_help_panel=MODELS)] = "lab",
    samples: Annotated[int, typer.Option(help="Questions", rich_help_panel=MODELS)] = 100,
    seed: Annotated[int, typer.Option(help="Of questions and bootstrap", rich_help_panel=MODELS)] = 0,
    passages: Annotated[int | None, typer.Option(help="Passages a question", rich_help_panel=MODELS)] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N", rich_help_panel=MODELS)] = "cpu",
    markdown: Annotated[Path | None, typer.Option(help="Write Markdown to this file", rich_help_panel=OUTPUT)] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page to this file", rich_help_panel=OUTPUT)] = None,
    figure: Annotated[
        Path | None, typer.Option(help="Write the figure: .png, .svg or .html", rich_help_panel=OUTPUT)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Set runs, trials or models side by side: paired differences, and what changed."""
    for name, path in (("markdown", markdown), ("html", html), ("figure", figure)):
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            raise BadInput(f"--{name} {str(path)!r}: a file in a folder that exists is needed")
    asked = {"data": source, "samples": samples, "seed": seed, "passages": passages, "device": device}
    planned = {text: Trial(model=text, **options(method, asked)) for text in run if is_model(text)}
    read = {text: reading.read(text) for text in run if text not in planned}
    for name, trial in planned.items():
        with progress(f"answering with {name}") as advance:
            record, rows = trial.run_each(advance)
        read[name] = [of_record(record, rows, name, f"{Path(name).name}, {record.label}")]
    found = compared(_named([each for text in run for each in read[text]]), base, score or ())
    if markdown is not None:
        write_text(markdown, compared_page.markdown(found))
    if html is not None:
        write_text(html, compared_page.page(found))
    if figure is not None:
        write_figure(differences(found), figure)
    if as_json:
        print(json.dumps(found.to_json(), default=str))
    else:
        Console(highlight=False, width=None if sys.stdout.isatty() else 160).print(_report(found))


def is_model(text: str) -> bool:
    """Return whether a text names a model: shipped, fetched or a checkpoint folder. Results come first."""
    path = Path(text)
    if path.is_file() or (path / "metrics.json").is_file() or (path / "trials").is_dir():
        return False
    if path.is_dir():
        return (path / "config.json").is_file() or (path / "workbench.json").is_file()
    try:
        models.folder(text)
    except BadInput:
        if path.suffix:
            return False
        raise BadInput(f"{text!r} is neither a record, a folder of results nor a model (`workbench models`)") from None
    return True


def _named(runs: list[Run]) -> list[Run]:
    """Name runs of several models by their models too."""
    several = len({run.parameters.get("model") for run in runs}) > 1
    if not several:
        return runs
    named = []
    for run in runs:
        model = Path(str(run.parameters.get("model", ""))).name
        named.append(replace(run, name=run.name if model in run.name else f"{model}, {run.name}"))
    return named


def _report(found: RunComparison) -> Group:
    parts: list[Table | str] = [f"[bold]{plain(said(found))}[/]", ""]
    for title, head, rows in compared_page.tables(found):
        if not rows:
            parts += [f"[dim]{plain(title)}: none[/]", ""]
            continue
        table = Table(box=None, pad_edge=False, title=plain(title), title_justify="left", title_style="dim")
        for number, name in enumerate(head):
            table.add_column(plain(name), justify="left" if number < 2 else "right", overflow="fold")
        for row in rows:
            table.add_row(*map(plain, row))
        parts += [table, ""]
    return Group(*parts)
