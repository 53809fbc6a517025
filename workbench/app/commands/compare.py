"""`workbench compare`: runs, trials or models side by side."""

import json
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from workbench import models
from workbench.app.console.options import OUTPUT, AsJson
from workbench.app.console.text import importing, progress
from workbench.core.errors import BadInput, did_you_mean
from workbench.core.utils.files import meant_beside, write_text
from workbench.methods.presets import options

if TYPE_CHECKING:
    from workbench.experiments.trials.runs import Run
    from workbench.experiments.trials.trial import Trial

MODELS = "If a RUN is a model"  # panel of `--help`

app = typer.Typer(add_completion=False)


@app.command(epilog="Example: workbench compare runs/full runs/block --html compared.html")
def compare(
    ctx: typer.Context,
    run: Annotated[
        list[str],
        typer.Argument(
            help="Two or more: a results folder (from `trial --out`, a sweep or a notebook), a record, or a model"
        ),
    ],
    *,
    base: Annotated[
        str | None,
        typer.Option(
            help="Baseline run, by name or number. Default: each run's full-attention run; of models, the first"
        ),
    ] = None,
    score: Annotated[
        list[str] | None, typer.Option(help="Scores to compare, e.g. em, f1, nll, kl. Default: all in common")
    ] = None,
    method: Annotated[str, typer.Option(help="Method the models answer with", rich_help_panel=MODELS)] = "full",
    source: Annotated[str, typer.Option("--data", help="Data set the models answer", rich_help_panel=MODELS)] = "lab",
    samples: Annotated[int, typer.Option(help="Questions", rich_help_panel=MODELS)] = 100,
    seed: Annotated[int, typer.Option(help="Seed for questions and bootstrap", rich_help_panel=MODELS)] = 0,
    passages: Annotated[int | None, typer.Option(help="Passages per question", rich_help_panel=MODELS)] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N", rich_help_panel=MODELS)] = "cpu",
    markdown: Annotated[Path | None, typer.Option(help="Write Markdown to this file", rich_help_panel=OUTPUT)] = None,
    html: Annotated[Path | None, typer.Option(help="Write an HTML page to this file", rich_help_panel=OUTPUT)] = None,
    figure: Annotated[
        Path | None, typer.Option(help="Write the figure to this file (.png, .svg or .html)", rich_help_panel=OUTPUT)
    ] = None,
    details: Annotated[
        bool, typer.Option("--details", help="Show all scores, costs, answers and settings", rich_help_panel=OUTPUT)
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compare runs, trials or models: paired differences and changed settings."""
    for name, path in (("markdown", markdown), ("html", html), ("figure", figure)):
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            raise BadInput(f"--{name} {str(path)!r}: a file in a folder that exists is needed")
        if path is not None and path.resolve().parent in {folder for text in run for folder in _folders(Path(text))}:
            raise BadInput(f"--{name} {str(path)!r} is inside a RUN, whose files are kept: choose another place")
    named = [text for text in run if is_model(text)]
    _check_asked(ctx, named)

    with progress("comparing"), importing():  # pandas: not for `--help`
        from workbench.experiments.trials import runs as reading
        from workbench.experiments.trials.record import label_of
        from workbench.experiments.trials.run_differences import check_asked, compared, planned_run

    asked = {"data": source, "samples": samples, "seed": seed, "passages": passages, "device": device}
    trials = _trials(named, options(method, asked)) if named else {}
    words = {name: f"{Path(name).name}, {label_of(trial.settings())}" for name, trial in trials.items()}
    read = {text: reading.read_runs(text) for text in run if text not in trials}
    read |= {name: [planned_run(words[name], trial.settings())] for name, trial in trials.items()}
    if twice := [text for i, text in enumerate(run) if os.path.realpath(text) in map(os.path.realpath, run[:i])]:
        raise BadInput(f"{twice[0]!r} is named twice: each RUN is compared with the others")
    if base is None and len(trials) == len(run) > 1:
        base = "1"  # models only, all under one method
    check_asked(_named([each for text in run for each in read[text]]), base, score or ())
    for name, trial in trials.items():
        with progress(f"answering with {name}") as advance:
            record, rows = trial.run_each(advance)
        read[name] = [reading.of_record(record, rows, name, words[name])]
    from workbench.app.reports import compared_page

    found = compared(_named([each for text in run for each in read[text]]), base, score or ())
    if markdown is not None:
        write_text(markdown, compared_page.markdown(found))
    if html is not None:
        write_text(html, compared_page.page(found))
    if figure is not None:
        from workbench.app.reports.figure_files import write_figure
        from workbench.plots.reports.run_differences import differences

        write_figure(differences(found), figure)
    if as_json:
        print(json.dumps(found.to_json(), default=str))
    else:
        console = Console(highlight=False, width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else 160)
        console.print(compared_page.report(found) if details else compared_page.overview(found, console.width))


def _trials(named: Sequence[str], fields: Mapping[str, Any]) -> "dict[str, Trial]":
    """Return the trials of models."""
    with progress("comparing"), importing():  # torch and transformers: not for finished runs
        from workbench.experiments.trials.trial import Trial

    return {text: Trial(model=text, **fields) for text in named}


def _folders(run: Path) -> list[Path]:
    """Return the folders of a RUN that is a folder."""
    return [path.resolve() for path in (run, *run.glob("*/")) if path.is_dir()]


def _check_asked(ctx: typer.Context, named: Collection[str]) -> None:
    """Raise BadInput for options on how models answer if no RUN is a model: records are already answered."""
    for param in ctx.command.params:
        source = ctx.get_parameter_source(param.name or "")
        if source and source.name == "COMMANDLINE" and not named and getattr(param, "rich_help_panel", None) == MODELS:
            raise BadInput(f"{param.opts[0]} is for models, and no RUN is a model: records already contain answers")


def is_model(text: str) -> bool:
    """Return whether a text names a model: shipped, fetched or a checkpoint folder. Results come first."""
    path = Path(text)
    if path.is_file() or (path / "metrics.json").is_file() or (path / "trials").is_dir():
        return False
    if path.is_dir():
        if not any((path / name).is_file() for name in ("config.json", "workbench.json")):
            raise BadInput(f"{path} holds no results: neither trials/ of `--out` nor metrics.json of a notebook")
        return True
    try:
        models.folder(text)
    except BadInput:
        if path.suffix:
            return False
        none = f"{text!r} is neither a record, a folder of results nor a model (`workbench models`)"
        raise BadInput(f"{none}{meant_beside(text) or did_you_mean(text, models.names())}") from None
    return True


def _named(runs: "list[Run]") -> "list[Run]":
    """Add the model to the names of runs, if there are several models."""
    several = len({run.parameters.get("model") for run in runs}) > 1
    if not several:
        return runs
    named = []
    for run in runs:
        model = Path(str(run.parameters.get("model", ""))).name
        named.append(replace(run, name=run.name if model in run.name else f"{model}, {run.name}"))
    return named
