"""The record of a trial as `workbench trial` prints it."""

from dataclasses import asdict

from rich.console import Group
from rich.table import Table

from workbench.app.console.text import plain, with_interval
from workbench.experiments.trials.record import Record
from workbench.methods.request_report import Receipt
from workbench.metrics import latency

RECEIPTS = 5  # that are shown


def report(result: Record) -> Group:
    """Return scores, fidelity, costs and receipts of a trial."""
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
