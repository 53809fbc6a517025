"""`workbench trial`: one measured comparison."""

from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.table import Table

from workbench.app.commands.options import OUTPUT, of_fields, taking
from workbench.app.commands.text import plain, progress, show, with_interval
from workbench.core.errors import BadInput
from workbench.core.files import write_text
from workbench.experiments import record
from workbench.experiments.record import Record
from workbench.experiments.runs import write_answers
from workbench.experiments.trial import Trial
from workbench.methods.config import MethodConfig
from workbench.methods.presets import METHODS, options, tiles
from workbench.methods.receipts import Receipt
from workbench.metrics import latency
from workbench.store.places import place_of, preparation_of

RECEIPTS = 5  # that are shown
METHOD = "Method"  # panel of `--help`
PUBLISHED = f"A published method by name; the options below change it. {', '.join(METHODS)}"
CHOICES = [field.name for field in fields(MethodConfig)]

app = typer.Typer(add_completion=False)


@app.command(epilog="Example: workbench trial --model lab-full --mode block --positions naive --samples 500")
@taking(
    of_fields(
        Trial,
        defaults={"model": "lab-full", **dict.fromkeys(CHOICES)},
        panels=dict.fromkeys([*CHOICES, "max_new_tokens"], METHOD),
        text=["ratio"],
    )
)
def trial(
    method: Annotated[str | None, typer.Option(help=PUBLISHED, rich_help_panel=METHOD)] = None,
    *,
    sparse_args: Annotated[
        str | None, typer.Option(help="Options of the sparse method, as block=256,mass=0.99", rich_help_panel=METHOD)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON on stdout", rich_help_panel=OUTPUT)] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Write the JSON record to this file, its questions beside it", rich_help_panel=OUTPUT),
    ] = None,
    **given: Any,
) -> None:
    """Answer questions with one method and report quality, time to first token and cost."""
    given["sparse"] = tiles(given["sparse"], sparse_args)
    if given["store"] and method is None and given["prepare"] is None:
        given["prepare"] = preparation_of(place_of(given["store"]))
    planned = Trial(**options(method, {name: value for name, value in given.items() if value is not None}))
    if out is not None and (out.is_dir() or not out.parent.is_dir()):
        raise BadInput(f"--out {str(out)!r}: a file in a folder that exists is needed")
    if out is not None and out.suffix == ".parquet":
        raise BadInput(f"--out {str(out)!r}: the record is JSON; the questions are written beside it as .parquet")
    with progress("answering") as advance:
        result, rows = planned.run_each(advance)
    line = record.dumps(result)
    if out is not None:
        write_answers(out.with_suffix(".parquet"), rows)
        write_text(out, line + "\n")
    show(as_json, line, _report(result))


def _report(result: Record) -> Group:
    head = f"[bold]{plain(result.trial['model'])} on {plain(result.trial['data'])}: {plain(result.label)}[/]"
    engine = f"\nengine {plain(result.engine)}" if result.engine else ""
    foot = f"[dim]95% intervals · {result.device} · answered in {result.seconds:.1f} s{engine}[/]"
    if result.note:
        head += f"\n[bold yellow]{plain(result.note)}[/]"
    fidelity = (_fidelity(result), "") if result.compared is not None else ()
    receipts = (_receipts(result), "") if result.receipts is not None else ()
    return Group(head, "", _scores(result), "", *fidelity, _costs(result), "", *receipts, foot)


def _receipts(result: Record) -> Table:
    """Show the receipts of the first requests; `--json` and `--out` hold all."""
    table = Table(box=None, pad_edge=False)
    for name in ("request", "receipt"):
        table.add_column(name)
    rows = result.receipts or []
    for row in rows[:RECEIPTS]:
        table.add_row(plain(str(row["id"])), plain(str(Receipt.from_json(row["receipt"]))))
    if len(rows) > RECEIPTS:
        table.add_row("…", f"[dim]and {len(rows) - RECEIPTS} more in the record[/]")
    return table


def _scores(result: Record) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("", "exact match", "F1", "contains", "n"):
        table.add_column(name, justify="right" if name else "left")
    for row in result.rows() if len(result.by_kind) > 1 else result.rows()[:1]:
        means = [with_interval(row, score) for score in ("em", "f1", "accuracy")]
        table.add_row(row["kind"] or "(no kind)", *means, str(row["n"]))
    return table


def _fidelity(result: Record) -> Table:
    """Tell how near full attention the predictions are, over all questions and those that full attention answers."""
    table = Table(box=None, pad_edge=False)
    for name in (
        "beside full attention (nats a token)",
        "gold nll",
        "more than full",
        "KL",
        "agreement",
        "first token",
    ):
        table.add_column(name, justify="left" if name.startswith("beside") else "right")
    answered = result.answered or {"compared": 0}
    for name, scores in (("all questions", asdict(result)), ("those it answers exactly", answered)):
        if scores["compared"]:
            means = [with_interval(scores, score) for score in ("nll", "nll_extra", "kl", "agree", "agree_first")]
            table.add_row(f"{name}, n = {scores['compared']}", *means)
    return table


def _costs(result: Record) -> Table:
    t = result.ttft_s
    table = Table(box=None, pad_edge=False, show_header=False)
    ends = latency.spread(vars(t))
    around = f"{latency.spread_words(t.n)}: {ends[0] * 1e3:.1f}–{ends[1] * 1e3:.1f} ms, " if ends else ""
    spread = f"[dim]{around}{t.n} requests one at a time[/]"
    table.add_row("time to first token", f"{t.p50 * 1e3:.1f} ms", spread)
    table.add_row("tokens computed", f"{result.rows_computed:.0f}", f"[dim]of {result.prompt_tokens:.0f} a prompt[/]")
    if result.rows_charged is not None:
        table.add_row("rows charged", f"{result.rows_charged:.0f}", "[dim]through all layers, selection included[/]")
    table.add_row("operations", f"{result.flops:.2e}", f"[dim]of these attention {result.flops_attention:.2e}[/]")
    table.add_row("bytes moved", f"{result.bytes:.2e}", f"[dim]of these from the store {result.bytes_loaded:.2e}[/]")
    if result.sparsity:
        kept = result.sparsity
        about = f"[dim]of the attention {kept['mass']:.1%}, output error {kept['error']:.3f}, chosen in "
        table.add_row("tiles kept", f"{kept['tiles']:.1%}", about + f"{kept['seconds'] * 1e3:.1f} ms[/]")
    if judged := result.faithfulness:
        spread = f"[dim]{judged['low']:.3f}–{judged['high']:.3f}, {judged['claims']} claims of {judged['n']} answers[/]"
        table.add_row("faithfulness", f"{judged['mean']:.3f}", spread)
    if result.rows_reused:
        table.add_row("store hit rate", f"{result.hit_rate:.1%}", "[dim]while the questions were answered[/]")
    if result.misses:
        reasons = ", ".join(f"{count} {reason}" for reason, count in result.misses.items())
        table.add_row("store misses", str(sum(result.misses.values())), f"[dim]{reasons}[/]")
    return table
