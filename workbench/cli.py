"""The `workbench` command. Bad input is one line `error: …` on stderr and exit code 2, with nothing written."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, Group
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from transformers.utils import logging as transformers_logging

from workbench import data as datasets
from workbench import models, record, report
from workbench.data import Sample
from workbench.errors import BadInput
from workbench.lab import commands
from workbench.record import Record
from workbench.trial import Progress as Callback
from workbench.trial import Trial

OUTPUT = "Output"
METHOD = "Method"


class Commands(typer.core.TyperGroup):
    """Turns BadInput of any command into its message and exit code 2; every other exception keeps exit code 1."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BadInput as problem:
            typer.echo(f"error: {problem}", err=True)
            raise typer.Exit(2) from None


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Cached-block attention on real language models: reuse, move and recompute the keys and values of a prompt.",
)
app.command("report")(report.command)
app.add_typer(commands.app, name="lab")


@app.callback()
def _quiet() -> None:
    if not sys.stderr.isatty():
        transformers_logging.disable_progress_bar()


@app.command(epilog="Example: workbench trial --model lab-full --mode block --positions naive --samples 500")
def trial(
    model: Annotated[str, typer.Option(help="Checkpoint folder or name (see `workbench models`)")] = "lab-full",
    data: Annotated[str, typer.Option(help="`lab`, a shipped name or a file: JSON, JSON lines, .gz")] = "lab",
    samples: Annotated[int, typer.Option(help="Questions to answer, at most")] = 200,
    passages: Annotated[
        int | None, typer.Option(help="Passages a question; without it, 10 of lab, all of a file")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the draw of samples and of the bootstrap")] = 0,
    mode: Annotated[
        str,
        typer.Option(
            help="full: ordinary prefill; block: every passage cached alone and reused", rich_help_panel=METHOD
        ),
    ] = "full",
    positions: Annotated[
        str,
        typer.Option(
            help="Of reused keys: re-encoded for their new place, or naive, as cached", rich_help_panel=METHOD
        ),
    ] = "re-encoded",
    max_new_tokens: Annotated[int, typer.Option(help="Most tokens of an answer", rich_help_panel=METHOD)] = 32,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N")] = "cpu",
    dtype: Annotated[
        str | None, typer.Option(help="float32, bfloat16 or float16; without it, float32 on cpu, else the checkpoint's")
    ] = None,
    batch: Annotated[int, typer.Option(help="Questions answered together, at most")] = 16,
    timed: Annotated[int, typer.Option(help="Requests whose time to first token is measured, one at a time")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON on stdout", rich_help_panel=OUTPUT)] = False,
    out: Annotated[Path | None, typer.Option(help="Write the JSON record to this file", rich_help_panel=OUTPUT)] = None,
) -> None:
    """Answer questions one way and report quality, time to first token and cost."""
    asked = Trial(
        model=model,
        data=data,
        mode=mode,
        positions=positions,
        samples=samples,
        seed=seed,
        passages=passages,
        device=device,
        dtype=dtype,
        batch=batch,
        max_new_tokens=max_new_tokens,
        timed=timed,
    )
    if out is not None and (out.is_dir() or not out.parent.is_dir()):
        raise BadInput(f"--out {str(out)!r}: a file in a folder that exists is needed")
    with _progress("answering") as advance:
        found = asked.run(advance)
    line = record.dumps(found)
    if out is not None:
        record.write(line + "\n", out)
    if as_json:
        print(line)
    else:
        Console(highlight=False).print(_report(found))


@app.command("models")
def list_models(as_json: Annotated[bool, typer.Option("--json", help="One line of JSON on stdout")] = False) -> None:
    """List the shipped models."""
    rows = [{"name": name, **models.describe(models.folder(name))} for name in models.names()]
    if as_json:
        print(json.dumps(rows))
        return
    table = Table("model", "type", "parameters", "layers", "context", "layout", box=None, pad_edge=False)
    for row in rows:
        size = f"{row['parameters'] / 1e6:.1f} M"
        table.add_row(row["name"], row["type"], size, str(row["layers"]), str(row["context"]), row["layout"])
    Console().print(table if rows else "no models are shipped with this installation")


@app.command("data")
def show_data(
    name: Annotated[str, typer.Argument(help="`lab`, a shipped name or a file")],
    samples: Annotated[int, typer.Option(help="How many to show")] = 3,
    seed: Annotated[int, typer.Option(help="Of the draw")] = 0,
    passages: Annotated[int | None, typer.Option(help="Passages a question")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON record a line")] = False,
) -> None:
    """Look at a data set."""
    found = datasets.load(name, samples, seed, passages)
    console = Console(highlight=False)
    for sample in found:
        if as_json:
            print(json.dumps(sample.to_json(), ensure_ascii=False))
        else:
            _show(console, sample)


def _show(console: Console, sample: Sample) -> None:
    facts = [sample.id, sample.kind, f"passages: {len(sample.ctxs)}"]
    console.print(f"[dim]{' · '.join(fact for fact in facts if fact)}[/]")
    for passage in sample.ctxs:
        mark = "*" if passage.title in sample.supporting_titles else " "
        console.print(
            f"{mark} [bold]{_plain(passage.title)}[/]  {_plain(passage.text)}", overflow="ellipsis", no_wrap=True
        )
    console.print(f"[bold]Q[/] {_plain(sample.question)}\n[bold]A[/] {_plain(' | '.join(sample.answers))}\n")


def _plain(text: str) -> str:
    return " ".join(text.split()).replace("[", r"\[")


def _report(found: Record) -> Group:
    how = found.trial["mode"] + (f", {found.trial['positions']} positions" if found.trial["mode"] == "block" else "")
    head = f"[bold]{_plain(found.trial['model'])} on {_plain(found.trial['data'])}: {how}[/]"
    foot = f"[dim]95% intervals · {found.device} · answered in {found.seconds:.1f} s[/]"
    return Group(head, "", _scores(found), "", _costs(found), "", foot)


def _scores(found: Record) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("", "exact match", "F1", "contains", "n"):
        table.add_column(name, justify="right" if name else "left")
    for row in found.rows() if len(found.by_kind) > 1 else found.rows()[:1]:
        means = [f"{row[s]:.3f} [dim]{row[s + '_low']:.3f}–{row[s + '_high']:.3f}[/]" for s in ("em", "f1", "accuracy")]
        table.add_row(row["kind"] or "(no kind)", *means, str(row["n"]))
    return table


def _costs(found: Record) -> Table:
    t, block = found.ttft_s, found.trial["mode"] == "block"
    table = Table(box=None, pad_edge=False, show_header=False)
    spread = f"[dim]5–95%: {t.p5 * 1e3:.1f}–{t.p95 * 1e3:.1f} ms, {t.n} requests one at a time[/]"
    table.add_row("time to first token", f"{t.p50 * 1e3:.1f} ms", spread)
    table.add_row("tokens computed", f"{found.rows_computed:.0f}", f"[dim]of {found.prompt_tokens:.0f} a prompt[/]")
    table.add_row("operations", f"{found.flops:.2e}", f"[dim]of these attention {found.flops_attention:.2e}[/]")
    table.add_row("bytes moved", f"{found.bytes:.2e}", f"[dim]of these from the store {found.bytes_loaded:.2e}[/]")
    if block:
        table.add_row("store hit rate", f"{found.hit_rate:.1%}", "[dim]while the questions were answered[/]")
    return table


@contextmanager
def _progress(what: str) -> Iterator[Callback | None]:
    """A bar on stderr where a person watches, else nothing."""
    if not sys.stderr.isatty():
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def main() -> None:
    """Entry point of the `workbench` command."""
    app()


if __name__ == "__main__":
    main()
