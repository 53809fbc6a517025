"""`workbench leaderboard`: every method on one model and data set, ranked on one budget."""

import json
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from workbench.app.commands.sweep import CLUSTER
from workbench.app.commands.trial import MethodFile
from workbench.app.console.options import OUTPUT, of_fields, with_options
from workbench.app.console.text import importing, plain, progress, wrap_sentence
from workbench.core.errors import BadInput, printable
from workbench.core.utils.files import check_folder, write_text
from workbench.experiments.leaderboard import check_by
from workbench.experiments.trials.trial_fields import TrialFields, check_numbers
from workbench.methods import own
from workbench.methods.method_fields import MethodFields
from workbench.methods.presets import METHODS

if TYPE_CHECKING:
    from workbench.experiments.leaderboard.measuring import PlannedTrials

MODEL = "lab-full"
LEFT_OUT = {field.name for field in fields(MethodFields)} | {"store", "faithfulness", "fidelity", "receipt"}
ASKED = [
    option
    for option in of_fields(TrialFields, {"model": None, "data": None, "timed": 5})
    if option.name not in LEFT_OUT
]
MEASURING = "Measuring"  # panel of `--help`
SEVERAL = 5  # boards printed in full; if there are more, one line each

app = typer.Typer(add_completion=False)


@app.command(epilog="Example: workbench leaderboard --model lab-full --data lab --samples 50 --out runs/leaderboard")
@with_options(ASKED)
def leaderboard(
    *,
    methods: Annotated[
        str | None,
        typer.Option(
            "--method",
            "--methods",
            help=f"Methods to rank: {', '.join(METHODS)}. Default: all",
            metavar="LIST",
            rich_help_panel=MEASURING,
        ),
    ] = None,
    budgets: Annotated[
        str | None,
        typer.Option(
            help="Charged shares of a prompt, selection included, e.g. 0.05,0.1,0.15,0.2,0.3. Default: 0.15",
            metavar="LIST",
            rich_help_panel=MEASURING,
        ),
    ] = None,
    method_file: MethodFile = None,
    jobs: Annotated[int, typer.Option(help="Parallel processes; affects timings", rich_help_panel=MEASURING)] = 1,
    cluster: Annotated[str | None, typer.Option(help=CLUSTER, metavar="ADDRESS", rich_help_panel=MEASURING)] = None,
    retries: Annotated[int, typer.Option(help="Retries per failed trial", rich_help_panel=MEASURING)] = 1,
    out: Annotated[
        Path | None,
        typer.Option(help="Results folder; rerun the same command to resume", rich_help_panel=OUTPUT),
    ] = None,
    results: Annotated[
        list[str] | None,
        typer.Option(
            help="Rank existing results (a folder or `shipped`) without measuring",
            is_eager=True,
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    by: Annotated[
        str,
        typer.Option(help="Ranking measure: kl, nll, em, f1, contains. Default: kl if known", rich_help_panel=OUTPUT),
    ] = "",
    html: Annotated[
        Path | None, typer.Option(help="Write an HTML page with sortable tables", rich_help_panel=OUTPUT)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout", rich_help_panel=OUTPUT)] = False,
    **given: Any,
) -> None:
    """Rank methods on the same questions within a compute budget: quality, cost and significant differences."""
    check_numbers({name: value for name, value in given.items() if value is not None})
    check_by(by)
    if (out is None) == (results is None):
        raise BadInput("give --out FOLDER to measure, or --results FOLDER (or shipped) to rank what was measured")
    if out is not None:
        check_folder("--out", out)
    if html is not None and (html.is_dir() or not html.parent.is_dir()):
        raise BadInput(f"--html {str(html)!r}: a file in a folder that exists is needed")
    shares = _shares(budgets)

    with progress("a leaderboard"), importing():  # torch, pandas and plotly: not for `--help`
        from workbench import results as tables
        from workbench.app.leaderboard import page
        from workbench.experiments.leaderboard.ranking import boards

    notes: list[str] = []
    failures: dict[str, str] = {}
    asked = {"model": given["model"] or "", "data": given["data"] or ""}
    if out is not None:
        with progress("planning"):
            plan = _planned(given, methods, shares, [*own.registered_policies(method_file), *own.installed()], cluster)
        asked = {name: getattr(plan.cases[0].trial, name) for name in asked}
        notes, shares = list(plan.left_out), list(plan.budgets)
        failures = _measured(plan, out, jobs, cluster, retries, notes)
    with progress("ranking"):
        whole = None if html is not None or as_json else SEVERAL
        place = tables.read([str(out)] if out else results or [])
        found = boards(place, shares, by, asked["model"], asked["data"], whole=whole)
    if html is not None:
        write_text(html, page.page(found, [*notes, *(f"{name}: {why}" for name, why in failures.items())]))
    if as_json:
        print(json.dumps({"boards": [board.to_json() for board in found], "left_out": notes, "failed": failures}))
    else:
        console = Console(highlight=False, width=None if Console().is_terminal else 80)
        from workbench.app.console.trial_report import unknown_text

        for note in filter(None, dict.fromkeys(unknown_text(board.model, board.data) for board in found)):
            console.print(f"[bold yellow]{plain(note)}[/]")
        if len(found) > SEVERAL:
            console.print(page.index(found))
            console.print("[bold]Full tables:[/] --html board.html, or --model M --data D --budgets B")
        else:
            for board in found:
                console.print(page.report(board))
                console.print()
        console.print(f"[dim]95% intervals over questions · results in {plain(', '.join(results or [str(out)]))}[/]")
    for name, why in failures.items():
        typer.echo(f"failed: {name}: {why}", err=True)
    if failures:
        raise typer.Exit(1)


def _planned(
    given: dict[str, Any], methods: str | None, shares: list[float], mine: list[tuple[str, str]], cluster: str | None
) -> "PlannedTrials":
    """Return what to measure; methods that cannot run are left out."""
    from workbench.experiments.leaderboard import measuring
    from workbench.experiments.trials.trial import Trial

    base = Trial(**{"model": MODEL} | {name: value for name, value in given.items() if value is not None})
    named = [name.strip() for name in (methods or "").split(",") if name.strip()]
    return measuring.plan_trials(base, named, shares or measuring.BUDGETS, mine, here=measuring.is_here(cluster))


def _measured(
    plan: "PlannedTrials", out: Path, jobs: int, cluster: str | None, retries: int, notes: list[str]
) -> dict[str, str]:
    """Print what is left out, measure the rest, and return why trials failed."""
    from workbench.experiments.leaderboard import measuring

    for note in notes:
        typer.echo(wrap_sentence(f"left out: {printable(note)}"), err=True)
    with progress(f"{len(plan.cases)} trials") as advance:
        return measuring.measure(plan, out, jobs, advance, cluster=cluster, retries=retries).failures


def _shares(text: str | None) -> list[float]:
    """Parse charged shares. Raises BadInput for anything that is not a share."""
    try:
        shares = [float(part) for part in (text or "").split(",") if part.strip()]
    except ValueError:
        raise BadInput(f"--budgets {text!r}: shares between 0 and 1 are needed, as 0.05,0.15") from None
    if shares and not any(0 < share <= 1 for share in shares):
        raise BadInput(f"budget {shares[0]:g}: a share above 0, at most 1, is needed")
    return shares
