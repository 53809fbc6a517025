"""`workbench sweep`: many trials, over lists of the options of `workbench trial`."""

import inspect
from collections.abc import Callable, Iterator
from inspect import Parameter
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_args, get_type_hints

import typer

from workbench.app.commands.trial import MethodFile, trial
from workbench.app.console.option_checks import check_named
from workbench.app.console.options import OUTPUT, option, parse, with_options
from workbench.app.console.text import importing, progress
from workbench.core import spec_parser
from workbench.core.errors import BadInput
from workbench.core.utils import annotations
from workbench.experiments.sweeps.sweep_plan import FIELDS, parts
from workbench.experiments.trials.trial_fields import TrialFields, check_numbers
from workbench.methods.method_fields import check_mode, check_ratio
from workbench.methods.presets import options

SWITCH = {"true": True, "false": False}
OWN = ("as_json", "out", "sparse_args", "method_file", "details")  # options of `trial` that are no fields of one

CLUSTER = (
    "Run trials on a Dask cluster: local (--jobs workers), slurm, kubernetes, ssh:HOST,HOST, "
    "or the address or file of a scheduler"
)

app = typer.Typer(add_completion=False)


def _lists() -> Iterator[Parameter]:
    """Yield the options of `workbench trial`, each as a list."""
    for parameter in inspect.signature(trial).parameters.values():
        if parameter.name not in OWN:
            about = parameter.annotation.__metadata__[0]
            yield option(parameter.name, str, None, about.help, about.rich_help_panel, metavar="LIST")


@app.command(
    epilog="Example: workbench sweep --prepare after_system,with_neighbours --select none,query_guided --ratio .05,.15"
)
@with_options(_lists())
def sweep(
    notebooks: Annotated[
        list[Path] | None, typer.Argument(help="Notebooks to run over lists of their parameters, instead of trials")
    ] = None,
    *,
    parameter: Annotated[
        list[str] | None,
        typer.Option(
            "--parameter",
            "-p",
            metavar="NAME=LIST",
            help="List of values of a notebook parameter",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    jobs: Annotated[int, typer.Option(help="Parallel processes", rich_help_panel=OUTPUT)] = 1,
    cluster: Annotated[str | None, typer.Option(help=CLUSTER, metavar="ADDRESS", rich_help_panel=OUTPUT)] = None,
    retries: Annotated[int, typer.Option(help="Retries per failed trial", rich_help_panel=OUTPUT)] = 1,
    keep_gib: Annotated[
        float,
        typer.Option(help="GiB of cached blocks each process keeps between trials", rich_help_panel=OUTPUT),
    ] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="Lines of JSON on stdout", rich_help_panel=OUTPUT)] = False,
    out: Annotated[Path, typer.Option(help="Results folder", rich_help_panel=OUTPUT)] = Path("runs/sweep"),
    method_file: MethodFile = None,
    plan: Annotated[
        Path | None,
        typer.Option(help="TOML file that lists trials; options given here override it", rich_help_panel=OUTPUT),
    ] = None,
    **given: str | None,
) -> None:
    """Run every combination of lists of options; rerun to resume after an interruption."""
    del method_file  # its policies are known since it was read
    if notebooks or parameter:
        if odd := [name for name, text in given.items() if text is not None]:
            raise BadInput(f"--{odd[0].replace('_', '-')} is for trials: parameters of notebooks are -p NAME=LIST")
        run_notebooks(notebooks or [], parameter or [], out, jobs, cluster, retries, as_json)
        return
    lists = {
        name: [_value(name, entry) for entry in spec_parser.split(text)]
        for name, text in given.items()
        if text is not None
    }
    for each in [lists, *(part.lists for part in (parts(plan, lists) if plan else ()))]:
        for name, value in ((name, value) for name, values in each.items() for value in values):
            _check(name, value)
    if out.exists() and not out.is_dir():
        raise BadInput(f"--out {str(out)!r} is a file: a folder is needed")
    with progress("sweeping"), importing():  # torch, transformers, pandas: not for `--help`
        from workbench.app.console.sweep_report import show_sweep
        from workbench.experiments.sweeps import sweep as sweeps
        from workbench.experiments.sweeps.sweep_grid import cases, read_plan
        from workbench.experiments.trials.trial import Trial

    if "model" not in lists and plan is None:
        lists["model"] = [inspect.signature(trial).parameters["model"].default]
    base = {name: getattr(Trial, name, None) for name in FIELDS}
    with progress("sweeping") as advance:
        listed = read_plan(plan, lists) if plan else cases(base, lists)
        outcome = sweeps.run(listed, out, jobs, advance, keep_gib=keep_gib, cluster=cluster, retries=retries)
    if as_json:
        print(outcome.table.to_json(orient="records", lines=True), end="")
    else:
        show_sweep(outcome.table, [name for name, values in lists.items() if len(values) > 1], out)
    for name, why in outcome.failures.items():
        typer.echo(f"failed: {name}: {why}", err=True)
    if outcome.failures:
        typer.echo(f"{len(outcome.failures)} trials failed; rerun to retry them", err=True)
        raise typer.Exit(1)


def run_notebooks(
    notebooks: list[Path], parameters: list[str], out: Path, jobs: int, cluster: str | None, retries: int, as_json: bool
) -> None:
    """Run notebooks over lists of their parameters, and print the table."""
    from workbench.app.notebooks import sweep as notebook_sweep  # papermill and nbconvert: not for trials

    if not notebooks:
        raise BadInput("no notebook is named: -p is for notebooks")
    lists = {}
    for name, text in (each.partition("=")[::2] for each in parameters):
        lists[name] = [parse([f"{name}={entry}"])[name] for entry in spec_parser.split(text)]
    with progress("notebooks") as advance:
        ran = notebook_sweep.run(notebooks, out, lists, jobs, cluster, retries, advance)
    if as_json:
        print(ran.table.to_json(orient="records", lines=True), end="")
    else:
        typer.echo(f"{len(ran.table)} runs, {len(ran.failures)} failed: {out / 'runs.parquet'}")
    for name, why in ran.failures.items():
        typer.echo(f"failed: {name}: {why}", err=True)
    if ran.failures:
        raise typer.Exit(1)


def _check(name: str, value: Any) -> None:
    """Raise BadInput for an entry that no trial accepts, whatever the other lists hold."""
    if name == "ratio":
        check_ratio(options(None, {"ratio": value})["ratio"])
        return
    if name in FIELDS:
        annotations.check(name, value, get_type_hints(TrialFields)[name])
    if name == "mode":
        check_mode(value)
    elif value is not None:
        check_numbers({name: value})
        check_named(f"--{name}", str(value), asking=name == "data")


def _value(name: str, text: str) -> Any:
    """Return one list entry as a value of a `Trial` field; text options stay text."""
    if name in ("ratio", "method"):  # `presets.options` reads them
        return text
    kinds = get_args(kind := get_type_hints(TrialFields)[name]) or (kind,)
    if text == "none" and NoneType in kinds:
        return None
    if bool in kinds:
        if text not in SWITCH:
            raise BadInput(f"{name} is {text!r}: it is {' or '.join(SWITCH)}")
        return SWITCH[text]
    number: Callable[[str], Any] = next((kind for kind in kinds if kind in (int, float)), str)
    try:
        return number(text)
    except ValueError:
        raise BadInput(f"{name} is {text!r}: a number is needed") from None
