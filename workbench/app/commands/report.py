"""`workbench report`: the notebooks, run into a website."""

from pathlib import Path
from typing import Annotated

import typer

from workbench.app.console.options import parse
from workbench.core.errors import BadInput

RESULTS = (
    "Draw the pages from these results: a folder that `--out` wrote, or shipped; repeat it to compare several. "
    "Without notebooks, all that draw results are run"
)
REAL = (
    "Some notebooks also with a real pretrained model, which is fetched where an index of packages can be reached; "
    "by default where neither notebooks nor a model are named"
)

app = typer.Typer(add_completion=False)


@app.command(epilog="Example: workbench report notebooks/05_kv_reuse.ipynb --out runs/one")
def command(
    notebooks: Annotated[list[Path] | None, typer.Argument(help="Notebooks; without any, notebooks/NN_*.ipynb")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the report")] = Path("runs/report"),
    jobs: Annotated[int, typer.Option(help="Notebooks run at a time")] = 2,
    parameter: Annotated[
        list[str] | None, typer.Option("--parameter", "-p", metavar="NAME=VALUE", help="For notebooks that have it")
    ] = None,
    results: Annotated[
        list[str] | None, typer.Option(help=RESULTS, metavar="FOLDER", rich_help_panel="Your own results")
    ] = None,
    real: Annotated[bool | None, typer.Option(help=REAL)] = None,
) -> None:
    """Run the notebooks and write a website of figures, metrics and tables."""
    from workbench.app.reports import real_pages  # papermill and plotly: not for `--help`
    from workbench.app.reports.report import run
    from workbench.app.reports.results import parameters_of, takes_results

    try:
        chosen = notebooks or sorted(Path("notebooks").glob("[0-9][0-9]_*.ipynb"))
        given = parse(parameter or [])
        if results:
            given = parameters_of(results) | given
            chosen = chosen if notebooks else takes_results(chosen)
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
