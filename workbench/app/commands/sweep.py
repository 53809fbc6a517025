"""`workbench sweep`: many trials, over lists of the options of `workbench trial`."""

import inspect
import sys
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_args

import pandas as pd
import typer
from rich.console import Console
from rich.table import Table

from workbench.app.commands.text import plain, progress
from workbench.app.commands.trial import trial
from workbench.core.errors import BadInput
from workbench.experiments import sweep as sweeps
from workbench.experiments.sweep_grid import FIELDS
from workbench.experiments.trial import Trial
from workbench.methods import registry

OWN = ("as_json", "out", "sparse_args")  # options of `workbench trial` that are no field of a trial
OUTPUT = "Output"

app = typer.Typer(add_completion=False)


def sweep(out: Path, jobs: int, as_json: bool, **asked: str | None) -> None:
    """Try every combination of lists of options; run again to go on after an interruption."""
    lists = {
        name: [_value(name, part) for part in registry.split(text)] for name, text in asked.items() if text is not None
    }
    if "model" not in lists:
        lists["model"] = [inspect.signature(trial).parameters["model"].default]
    if out.exists() and not out.is_dir():
        raise BadInput(f"--out {str(out)!r} is a file: a folder is needed")
    base = {name: getattr(Trial, name, None) for name in FIELDS}
    with progress("sweeping") as advance:
        found = sweeps.run(sweeps.cases(base, lists), out, jobs, advance)
    if as_json:
        print(found.table.to_json(orient="records", lines=True), end="")
    else:
        varied = [name for name, values in lists.items() if len(values) > 1]
        console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
        if len(found.table):
            for note in filter(None, found.table["note"].unique()):
                console.print(f"[bold yellow]{plain(note)}[/]")
            console.print(_table(found.table, varied))
        console.print(f"[dim]95% intervals · {plain(str(out / 'trials.parquet'))}, answers.parquet[/]")
    for name, why in found.failures.items():
        typer.echo(f"failed: {name}: {why}", err=True)
    if found.failures:
        typer.echo(f"{len(found.failures)} trials failed; run again to try them again", err=True)
        raise typer.Exit(1)


def _value(name: str, text: str) -> Any:
    """What one entry of a list means for a field of `Trial`; options that are text stay text."""
    if name in ("ratio", "method"):  # `published.options` reads them
        return text
    kinds = get_args(kind := Trial.__dataclass_fields__[name].type) or (kind,)
    if text == "none" and NoneType in kinds:
        return None
    number = next((kind for kind in kinds if kind in (int, float)), None)
    try:
        return text if number is None else number(text)  # type: ignore[operator]
    except ValueError:
        raise BadInput(f"{name} is {text!r}: a number is needed") from None


def _table(found: pd.DataFrame, varied: list[str]) -> Table:
    table = Table(box=None, pad_edge=False)
    names = varied or ["way"]
    for name in names:
        table.add_column(name)
    for name in ("exact match", "F1", "n", "tokens computed", "time to first token"):
        table.add_column(name, justify="right")
    for _, row in found[found["kind"] == "all"].iterrows():
        means = [f"{row[s]:.3f} [dim]{row[s + '_low']:.3f}–{row[s + '_high']:.3f}[/]" for s in ("em", "f1")]
        costs = [str(row["n"]), f"{row['rows_computed']:.0f}", f"{row['ttft_p50'] * 1e3:.1f} ms"]
        table.add_row(*("" if pd.isna(row[name]) else plain(str(row[name])) for name in names), *means, *costs)
    return table


def _signature() -> inspect.Signature:
    """The options of `workbench trial`, each as a list, and those of a sweep."""
    shown = []
    for name, option in inspect.signature(trial).parameters.items():
        if name not in OWN:
            about = option.annotation.__metadata__[0]
            like = typer.Option(help=about.help, rich_help_panel=about.rich_help_panel, metavar="LIST")
            shown.append(
                inspect.Parameter(name, option.KEYWORD_ONLY, default=None, annotation=Annotated[str | None, like])
            )
    own = {
        "jobs": (int, 1, typer.Option(help="Processes that run trials side by side", rich_help_panel=OUTPUT)),
        "as_json": (bool, False, typer.Option("--json", help="Lines of JSON on stdout", rich_help_panel=OUTPUT)),
        "out": (Path, Path("runs/sweep"), typer.Option(help="Folder of the results", rich_help_panel=OUTPUT)),
    }
    for name, (kind, default, like) in own.items():
        shown.append(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, like])
        )
    return inspect.Signature(shown)


sweep.__signature__ = _signature()  # type: ignore[attr-defined]
app.command(
    epilog="Example: workbench sweep --prepare after_system,with_neighbours --select none,query_guided --ratio .05,.15"
)(sweep)
