"""`workbench trial`: one measured comparison."""

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from workbench.app.console.options import OUTPUT, of_fields, with_options
from workbench.app.console.text import importing, progress, show
from workbench.core.utils.files import check_folder
from workbench.data.sources.hub import HUB
from workbench.experiments.trials.trial_fields import TrialFields, check_fields, check_sizes
from workbench.methods import own
from workbench.methods.method_fields import MethodFields, check_ratio_used
from workbench.methods.presets import METHODS, options, tiles

METHOD = "Method"  # panel of `--help`
PUBLISHED = f"A published method by name; the options below change it. {', '.join(METHODS)}"
MethodFile = Annotated[
    list[Path] | None,
    typer.Option(
        help="Python file with your own methods, for --select, --prepare, --correct, … by name (docs: Add a method)",
        callback=own.use,
        is_eager=True,
        rich_help_panel=METHOD,
    ),
]
CHOICES = [field.name for field in fields(MethodFields)]

app = typer.Typer(add_completion=False)


@app.command(epilog="Example: workbench trial --model lab-full --mode block --positions naive --samples 500")
@with_options(
    of_fields(
        TrialFields,
        defaults={"model": "lab-full", **dict.fromkeys(CHOICES)},
        panels=dict.fromkeys([*CHOICES, "max_new_tokens"], METHOD),
        text=["ratio"],
    )
)
def trial(
    method: Annotated[str | None, typer.Option(help=PUBLISHED, rich_help_panel=METHOD)] = None,
    *,
    method_file: MethodFile = None,
    sparse_args: Annotated[
        str | None, typer.Option(help="Options of the sparse method, e.g. block=256,mass=0.99", rich_help_panel=METHOD)
    ] = None,
    details: Annotated[
        bool,
        typer.Option("--details", help="Add scores by kind, fidelity and all costs", rich_help_panel=OUTPUT),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON on stdout", rich_help_panel=OUTPUT)] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Add the trial to the results in this folder, like `sweep`", rich_help_panel=OUTPUT),
    ] = None,
    **given: Any,
) -> None:
    """Answer questions with one method and report quality, time to first token and cost."""
    del method_file  # its policies are known since it was read
    if out is not None:
        check_folder("--out", out)
    given["sparse"] = tiles(given["sparse"], sparse_args)
    asked = options(method, {name: value for name, value in given.items() if value is not None})
    check_fields(asked)
    if given["ratio"] is not None:
        check_ratio_used(asked)
    check_sizes(asked)
    data = given["data"] if given["data"].startswith(HUB) else Path(given["data"]).name
    with progress(f"{Path(given['model']).name} on {data}") as advance:
        with importing():  # torch and transformers: not for `--help`
            from workbench.app.console.trial_report import beside_full, report
            from workbench.experiments.sweeps.sweep_grid import Case
            from workbench.experiments.trials import record
            from workbench.experiments.trials.trial import Trial
            from workbench.store.urls import place_of, preparation_of

        if given["store"] and method is None and given["prepare"] is None:
            given["prepare"] = preparation_of(place_of(given["store"]))
        planned = Trial(**options(method, {name: value for name, value in given.items() if value is not None}))
        result, answers = planned.run_each(advance)
    if out is not None:
        from workbench.experiments.trials import rows  # pandas: only for `--out`

        rows.write(out, Case(planned).key, result, answers, method or "")
    show(as_json, record.dumps(result), report(result, answers) if details else beside_full(result, answers))
