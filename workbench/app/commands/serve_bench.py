"""`workbench serve-bench`: many questions through the scheduler, in every mode."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group
from rich.table import Table

from workbench.app.commands.trial import MethodFile
from workbench.app.console.options import OUTPUT, of_fields, with_options
from workbench.app.console.text import importing, plain, progress, show
from workbench.core.utils.files import check_folder
from workbench.experiments.serving.serve_fields import ServeFields

if TYPE_CHECKING:
    from workbench.experiments.serving.served import Served

app = typer.Typer(add_completion=False)
OPTIONS = ("start", "engine", "rate", "batch", "loaders", "max_new_tokens", "seed")  # of `measure`


@app.command(epilog="Example: workbench serve-bench --model lab-full --rate 8 --baselines prefix --out runs/mine")
@with_options(of_fields(ServeFields, defaults={}))
def serve_bench(
    *,
    method_file: MethodFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON on stdout", rich_help_panel=OUTPUT)] = False,
    out: Annotated[
        Path | None, typer.Option(help="Add timings and counts to the results in this folder", rich_help_panel=OUTPUT)
    ] = None,
    **given: Any,
) -> None:
    """Benchmark serving through the scheduler: TTFT, throughput and idle share."""
    del method_file  # its policies are known since it was read
    asked = ServeFields(**given)
    with progress("serving"), importing():  # torch and transformers: not for `--help`
        from workbench import data, models
        from workbench.experiments.serving import served
        from workbench.experiments.serving.baselines import measure_baselines
        from workbench.experiments.serving.serve_bench import measure
        from workbench.experiments.trials.record import device_name, versions
        from workbench.experiments.trials.trial_measures import check_context
        from workbench.methods.config import MethodConfig
        from workbench.methods.modes.reuse import Reuse
        from workbench.results import Writer, this_run

    config = MethodConfig(mode="block", select=asked.select, ratio=asked.ratio)
    config.check()
    if out is not None:
        check_folder("--out", out)
    options = {name: getattr(asked, name) for name in OPTIONS}
    with progress("serving") as advance:
        samples = data.load(asked.data, asked.samples, asked.seed, asked.passages, answered=False)
        loaded = models.load(asked.model, asked.device, asked.dtype, asked.layout)
        prompts = loaded.layout.prompts(samples, loaded.tokenizer)
        check_context(loaded.spec.context, samples, prompts)
        method = config.method(system=bool(loaded.layout.system))
        assert isinstance(method, Reuse)
        origin = {**this_run(), **served.origin(asked), "device": device_name(loaded.model.device)}
        runs = measure(loaded, prompts, asked.modes, method, **options, progress=advance)
        same = {name: options[name] for name in options if name not in ("start", "engine")}
        names, system = asked.without_reuse, int(bool(loaded.layout.system))
        runs += measure_baselines(loaded, prompts, names, system=system, **same, progress=advance)
    if out is not None:
        origin["versions"] = versions() | data.versions(asked.data)
        with Writer(out, f"serving@{Path(asked.model).name}", **origin) as tables:
            tables.timings(served.timings(runs, served.setting(asked)))
            tables.counts(served.counts(runs, str(asked.start), served.setting(asked)))
    about = {"model": asked.model, "data": asked.data, "device": origin["device"], "engine": runs[0].engine}
    line = json.dumps(about | {"start": asked.start, "rate": asked.rate, "runs": [run.to_json() for run in runs]})
    show(as_json, line, report(about | {"start": str(asked.start)}, runs))


def report(about: dict[str, str], runs: Sequence["Served"]) -> Group:
    """Return a table with one row per mode and baseline."""
    from workbench.experiments.serving.served import NAMES, REUSE

    table = Table(box=None, pad_edge=False)
    for name in ("mode", "TTFT mean, ms", "median", "p95", "answers a second", "idle", "hit rate", "tokens computed"):
        table.add_column(name, justify="left" if name == "mode" else "right", no_wrap=name == "mode")
    for run in runs:
        times = (f"{1e3 * seconds:.1f}" for seconds in (run.ttft_mean, run.ttft.p50, run.ttft.p95))
        shares = (f"{run.per_second:.2f}", f"{run.idle:.0%}", f"{run.hit_rate:.0%}", f"{run.rows_computed:.0f}")
        table.add_row(NAMES.get(run.name, run.name), *times, *shares)
    head = f"[bold]{plain(about['model'])} on {plain(about['data'])}: {runs[0].questions} questions[/]"
    foot = f"[dim]{plain(about['device'])} · engine {plain(about['engine'])}[/]"
    beside = f"Baselines use a contiguous KV cache per request, and start empty; blocks start {about['start']}."
    return Group(
        head, "", table, "", foot, *([f"[dim]{beside}[/]"] if any(run.method != REUSE for run in runs) else [])
    )
