"""`workbench trial`: one measured comparison."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, Group
from rich.table import Table

from workbench.app.commands.text import plain, progress
from workbench.core.errors import BadInput
from workbench.experiments import record
from workbench.experiments.record import Record
from workbench.experiments.trial import Trial
from workbench.methods.presets import METHODS, options, tiles

OUTPUT = "Output"
METHOD = "Method"
NAMES = ", ".join(METHODS)

app = typer.Typer()


@app.command(epilog="Example: workbench trial --model lab-full --mode block --positions naive --samples 500")
def trial(
    model: Annotated[str, typer.Option(help="Checkpoint folder or name (see `workbench models`)")] = "lab-full",
    data: Annotated[str, typer.Option(help="`lab`, a shipped name or a file: JSON, JSON lines, .gz")] = "lab",
    samples: Annotated[int, typer.Option(help="Questions to answer, at most")] = 200,
    passages: Annotated[
        int | None, typer.Option(help="Passages a question; without it, 10 of lab, all of a file")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the draw of samples and of the bootstrap")] = 0,
    method: Annotated[
        str | None,
        typer.Option(help="A published method by name; the options below change it. " + NAMES, rich_help_panel=METHOD),
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(
            help="full: ordinary prefill (default); block: every passage cached apart and reused; superposition",
            rich_help_panel=METHOD,
        ),
    ] = None,
    positions: Annotated[
        str | None,
        typer.Option(
            help="Of reused keys: re-encoded for their new place (default), or naive, as cached",
            rich_help_panel=METHOD,
        ),
    ] = None,
    prepare: Annotated[
        str | None,
        typer.Option(
            help="What a passage sees before it is cached: alone (default), isolated, with_neighbours(n=10)",
            rich_help_panel=METHOD,
        ),
    ] = None,
    select: Annotated[
        str | None,
        typer.Option(
            help="Which cached tokens are computed again: none (default), query_guided, kv_deviation(part=v), …",
            rich_help_panel=METHOD,
        ),
    ] = None,
    sparse: Annotated[
        str | None,
        typer.Option(
            help="Which key tiles are attended to: none (default: all), bfla, flash_prefill(alpha=0.1), …",
            rich_help_panel=METHOD,
        ),
    ] = None,
    sparse_args: Annotated[
        str | None, typer.Option(help="Options of the sparse method, as block=256,mass=0.99", rich_help_panel=METHOD)
    ] = None,
    chunk: Annotated[int | None, typer.Option(help="Rows of one pass of the prefill", rich_help_panel=METHOD)] = None,
    ratio: Annotated[
        str | None,
        typer.Option(
            help="How many of them: a share of the tokens of all passages, 0.15, or own: the selector decides",
            rich_help_panel=METHOD,
        ),
    ] = None,
    prepared: Annotated[
        str | None,
        typer.Option(help="Take cached passages from this folder of `workbench prepare`", rich_help_panel=METHOD),
    ] = None,
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
    given: dict[str, Any] = {"mode": mode, "positions": positions, "prepare": prepare, "select": select, "ratio": ratio}
    given |= {"prepared": prepared, "sparse": tiles(sparse, sparse_args), "chunk": chunk}
    asked = Trial(
        model=model,
        data=data,
        **options(method, {name: value for name, value in given.items() if value is not None}),
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
    with progress("answering") as advance:
        found = asked.run(advance)
    line = record.dumps(found)
    if out is not None:
        record.write(line + "\n", out)
    if as_json:
        print(line)
    else:
        Console(highlight=False).print(_report(found))


def _report(found: Record) -> Group:
    head = f"[bold]{plain(found.trial['model'])} on {plain(found.trial['data'])}: {plain(found.way)}[/]"
    foot = f"[dim]95% intervals · {found.device} · answered in {found.seconds:.1f} s[/]"
    if found.note:
        head += f"\n[bold yellow]{plain(found.note)}[/]"
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
    t = found.ttft_s
    table = Table(box=None, pad_edge=False, show_header=False)
    spread = f"[dim]5–95%: {t.p5 * 1e3:.1f}–{t.p95 * 1e3:.1f} ms, {t.n} requests one at a time[/]"
    table.add_row("time to first token", f"{t.p50 * 1e3:.1f} ms", spread)
    table.add_row("tokens computed", f"{found.rows_computed:.0f}", f"[dim]of {found.prompt_tokens:.0f} a prompt[/]")
    table.add_row("operations", f"{found.flops:.2e}", f"[dim]of these attention {found.flops_attention:.2e}[/]")
    table.add_row("bytes moved", f"{found.bytes:.2e}", f"[dim]of these from the store {found.bytes_loaded:.2e}[/]")
    if found.sparsity:
        kept = found.sparsity
        about = f"[dim]of the attention {kept['mass']:.1%}, output error {kept['error']:.3f}, chosen in "
        table.add_row("tiles kept", f"{kept['tiles']:.1%}", about + f"{kept['seconds'] * 1e3:.1f} ms[/]")
    if found.rows_reused:
        table.add_row("store hit rate", f"{found.hit_rate:.1%}", "[dim]while the questions were answered[/]")
    return table
