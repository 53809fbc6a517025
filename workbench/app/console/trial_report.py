"""Output of `workbench trial`: one table compared with full attention, or all details."""

from collections.abc import Mapping
from dataclasses import asdict, fields
from shlex import quote
from statistics import fmean
from typing import Any

from rich.console import Group
from rich.table import Table

from workbench.app.console.text import copied, not_noted, plain, with_interval
from workbench.experiments.trials.record import Record
from workbench.experiments.trials.trial_fields import TrialFields
from workbench.methods.method_fields import MethodFields
from workbench.methods.presets import name_of
from workbench.methods.request_report import Receipt
from workbench.metrics import latency
from workbench.metrics.answers import Records
from workbench.metrics.measures import MEASURES
from workbench.metrics.paired import FEWEST, count_differing, difference, too_few

RECEIPTS = 5  # that are shown


FIDELITY = {
    "nll": "gold answer's loss, nats a token",
    "nll_extra": "more than full attention's",
    "kl": "KL, nats a token",
    "agree": "same top token",
    "agree_first": "same first token",
}
READER = "smollm2-reader"  # a small model that answers questions on any text
SCORES = ("em", "f1", "contains")


def beside_full(result: Record, answers: Records) -> Group:
    """Return a table of a trial compared with full attention, what its numbers mean, and the next command.

    `answers` has one row per question, as `Trial.run_each` returns.
    """
    return Group(_short(result, answers), _next_line(result))


def _short(result: Record, answers: Records) -> Group:
    """Return the table of a trial compared with full attention, and what its numbers mean."""
    table = Table(box=None, pad_edge=False)
    compared = (result.compared is not None and result.trial["mode"] != "full") or bool(result.ttft_full_s)
    for name in ("", "method", *(("full", "difference (95%)") if compared else ("95%",))):
        table.add_column(name, justify="right" if name in ("method", "full") else "left", no_wrap=True, min_width=6)
    for name in SCORES:
        if result.n:
            table.add_row(MEASURES[name].label, *(_paired(answers, name) if compared else _alone(result, name)))
    if compared and result.kl is not None:
        kl = MEASURES["kl"]
        table.add_row(kl.label, kl.format_value(result.kl), "0", _kl_ends(result, answers))
    ms, full = result.ttft_s, result.ttft_full_s
    times = [f"{ms.p50 * 1e3:.1f}"]
    if compared and full:
        times += [f"{full.p50 * 1e3:.1f}", _speedup(result, full)]
    elif not compared:
        times += [f"{ms.n} request{'s' * (ms.n > 1)}"]
    table.add_row("first token, ms", *times)
    of_full = (f"{result.prompt_tokens:.0f}", f"{result.rows_computed / result.prompt_tokens:.0%}")
    table.add_row("tokens computed", f"{result.rows_computed:.0f}", *(of_full if compared else ()))
    if kept := result.sparsity:
        beside = ("100%", f"{kept['mass']:.0%} of the attention") if compared else ()
        table.add_row(*_kept(kept, 0), *beside)
    asked = f"{len(answers)} questions" if len(answers) > 1 else "1 question"
    head = f"[bold]{_head(result)}[/], {asked}"
    notes = [f"[yellow]{plain(note)}[/]" for note in (not_noted(result.note), _unknown_text(result)) if note]
    return Group(head, *notes, table, *_stored(result), f"[dim]{_meaning(result, answers, compared)}[/]")


def _stored(result: Record) -> list[str]:
    """Return a line on the blocks of a given store; none without one."""
    if (blocks := result.stored) is None:
        return []
    created = f"created {result.trial.get('store')}; " if blocks["created"] else ""
    asked = blocks["reused"] + blocks["encoded"]
    return [plain(f"store: {created}{blocks['reused']:,} of {asked:,} blocks reused, {blocks['encoded']:,} encoded")]


def _next_line(result: Record, detailed: bool = False) -> str:
    details = "All numbers: --details. "
    return f"[dim]{copied(plain(_next(result).removeprefix(details if detailed else '')))}[/]"


def _kept(sparsity: Mapping[str, Any], digits: int) -> tuple[str, str]:
    """Return what a sparse method keeps: the share of tiles, or of token pairs if it keeps a part of every tile."""
    if sparsity["tiles"] > 0.995 > sparsity["density"]:
        return "token pairs kept", f"{sparsity['density']:.{digits}%}"
    return "tiles kept", f"{sparsity['tiles']:.{digits}%}"


def _head(result: Record) -> str:
    """Return the model, the data and the method, by its published name if it has one."""
    chosen = {name: result.trial.get(name) for name in (each.name for each in fields(MethodFields))}
    name = name_of({field: value for field, value in chosen.items() if value not in (None, "none")})
    method = result.label if name in (None, result.label) else f"{name} ({result.label})"
    return plain(f"{result.trial['model']} on {result.trial['data']}: {method}")


def _speedup(result: Record, full: latency.Quantiles) -> str:
    """Return the speedup over full attention with its interval, if enough requests were timed.

    If as many tokens are computed, the difference is timing noise, so none is returned.
    """
    ours = result.ttft_s
    if min(ours.n, full.n) < latency.CLAIMED:
        return f"no speedup: {latency.CLAIMED} timed requests needed"
    if abs(result.rows_computed / result.prompt_tokens - 1) <= latency.SAME_WORK and not result.sparsity:
        return "no speedup: same number of tokens computed"
    value, low, high = latency.ratio(latency.ttft_record(full), latency.ttft_record(ours))
    said = f"speedup {value:.3g}×" if value >= 1 else f"{value:.3g}× as fast"
    return f"{said} ({low:.3g} to {high:.3g})"


def _paired(answers: Records, score: str) -> tuple[str, str, str]:
    """Return a score of the method and of full attention, and their paired difference."""
    pairs = [(row[score], row[f"full_{score}"]) for row in answers if row.get(f"full_{score}") is not None]
    if not pairs:
        return "–", "–", ""
    ours, full = [one for one, _ in pairs], [other for _, other in pairs]
    gap, measure = difference(ours, full), MEASURES[score]
    ends = count_differing(gap.moved, gap.n) if gap.few else measure.ends(gap.low, gap.high, gap=True)
    return (
        measure.format_value(fmean(ours)),
        measure.format_value(fmean(full)),
        f"{measure.say_gap(gap.mean)}{measure.unit} ({ends})",
    )


def _moved(answers: Records) -> tuple[int, int]:
    """Return for how many questions predictions differ from full attention's, and of how many."""
    known = [row["kl"] for row in answers if row.get("kl") is not None]
    return sum(value != 0 for value in known), len(known)


def _kl_ends(result: Record, answers: Records) -> str:
    """Return the interval of the KL, which is a difference from full attention's 0."""
    moved, n = _moved(answers)
    if too_few(moved):
        return count_differing(moved, n)
    return MEASURES["kl"].ends(result.kl_low or 0, result.kl_high or 0)


def _alone(result: Record, score: str) -> tuple[str, str]:
    value, low, high = (getattr(result, name) for name in (score, f"{score}_low", f"{score}_high"))
    return MEASURES[score].format_value(value), "one question" if result.n == 1 else MEASURES[score].ends(low, high)


def _meaning(result: Record, answers: Records, compared: bool) -> str:
    if not compared and result.trial["mode"] == "full" and not result.sparsity:
        return "Every token is computed: the baseline for other methods."
    if not compared:
        return "To compare with full attention, leave out --no-fidelity."
    full = result.ttft_full_s
    counted = f"{result.ttft_s.n} request{'s' * (result.ttft_s.n > 1)} (full: {full.n})" if full else ""
    fewest = min(result.ttft_s.n, full.n) if full else 0
    ends = f" and {latency.spread_words(fewest)}" if fewest >= latency.CLAIMED else ""
    times = f" Times: median{ends} of {counted}." if full else ""
    scored = [row for row in answers if row["em"] is not None]
    is_any_exact = any(row["em"] or row.get("full_em") for row in scored)
    read = " Neither has an exact answer: compare KL and F1." if scored and not is_any_exact else ""
    if too_few(_moved(answers)[0]):
        return f"A difference has an interval from {FEWEST} differing questions on: --samples asks more.{read}{times}"
    return f"If an interval includes 0, these questions cannot distinguish the method from full attention.{read}{times}"


def _unknown_text(result: Record) -> str:
    return unknown_text(str(result.trial["model"]), str(result.trial["data"]))


def unknown_text(model: str, source: str) -> str:
    """Return a warning that a lab model knows only its own corpus, if the text is another."""
    if not model.startswith("lab-") or source.startswith(("lab", "needles")):
        return ""
    return f"{model} was trained only on the synthetic corpus `lab`: for other text, use --model {READER}."


def _next(result: Record) -> str:
    """Return the next command to try on the same questions."""
    asked = {name: result.trial[name] for name in ("data", "samples", "seed", "passages")}
    given = {name: value for name, value in asked.items() if value != getattr(TrialFields, name)}
    given = {"model": READER if _unknown_text(result) else result.trial["model"], **given}
    about = " ".join(f"--{name} {quote(str(value))}" for name, value in given.items())
    if result.trial["mode"] == "full":
        return f"Next: workbench trial {about} --method full-reuse"
    if result.trial["mode"] == "block" and result.trial["select"] == "none":
        return f"Next: workbench trial {about} --method cacheblend"
    return f"All numbers: --details. Next: workbench leaderboard {about} --out runs/leaderboard"


def report(result: Record, answers: Records) -> Group:
    """Return the table of `beside_full`, scores by kind, fidelity, costs and receipts; the next command is last."""
    engine = f"\nengine {plain(result.engine)}" if result.engine else ""
    foot = f"[dim]95% intervals · {result.device} · answered in {result.seconds:.1f} s{engine}[/]"
    scored = (_scores(result), "") if result.n else ()
    fidelity = (_fidelity(result), "") if result.compared is not None else ()
    receipts = (_receipts(result), "") if result.receipts is not None else ()
    return Group(
        _short(result, answers), "", *scored, *fidelity, _costs(result), "", *receipts, foot, _next_line(result, True)
    )


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
    table = Table(box=None, pad_edge=False, collapse_padding=True)
    for name in ("", *(MEASURES[score].label for score in SCORES), "n"):
        table.add_column(name, justify="right" if name else "left")
    for row in result.rows() if len(result.by_kind) > 1 else result.rows()[:1]:
        means = [with_interval(row, score) for score in SCORES]
        table.add_row(row["kind"] or "(no kind)", *means, str(row["n"]))
    return table


def _fidelity(result: Record) -> Table:
    """Show how close predictions are to full attention's, over all questions and those that it answers."""
    table = Table(box=None, pad_edge=False)
    table.add_column("beside full attention")
    answered = result.answered or {"compared": 0}
    parts = (("all questions", asdict(result)), ("those it answers", answered))
    known = [(name, scores) for name, scores in parts if scores["compared"]]
    for name, scores in known:
        table.add_column(f"{name}, n = {scores['compared']}", justify="right", no_wrap=True)
    for score, words in FIDELITY.items():
        if any(scores[score] is not None for _, scores in known):
            table.add_row(words, *(with_interval(scores, score) for _, scores in known))
    return table


def _costs(result: Record) -> Table:
    t = result.ttft_s
    table = Table(box=None, pad_edge=False, show_header=False)
    ends = latency.spread_ends(vars(t)) if t.n > 1 else None
    around = f"{latency.spread_words(t.n)}: {ends[0] * 1e3:.1f} to {ends[1] * 1e3:.1f} ms, " if ends else ""
    spread = f"[dim]{around}{t.n} request{'s one at a time' * (t.n > 1)}[/]"
    table.add_row("time to first token", f"{t.p50 * 1e3:.1f} ms", spread)
    table.add_row("tokens computed", f"{result.rows_computed:.0f}", f"[dim]of {result.prompt_tokens:.0f} a prompt[/]")
    if result.rows_charged is not None:
        table.add_row("rows charged", f"{result.rows_charged:.0f}", "[dim]through all layers, selection included[/]")
    table.add_row("operations", f"{result.flops:.2e}", f"[dim]of these attention {result.flops_attention:.2e}[/]")
    table.add_row("bytes moved", f"{result.bytes:.2e}", f"[dim]of these from the store {result.bytes_loaded:.2e}[/]")
    if result.sparsity:
        kept = result.sparsity
        about = f"[dim]of the attention {kept['mass']:.1%}, output error {kept['error']:.3f}, chosen in "
        table.add_row(*_kept(kept, 1), about + f"{kept['seconds'] * 1e3:.1f} ms[/]")
    if judged := result.faithfulness:
        spread = (
            f"[dim]{judged['low']:.1%} to {judged['high']:.1%}, {judged['claims']} claims of {judged['n']} answers[/]"
        )
        table.add_row("faithfulness", f"{judged['mean']:.1%}", spread)
    if result.rows_reused:
        table.add_row("store hit rate", f"{result.hit_rate:.1%}", "[dim]while the questions were answered[/]")
    if result.misses:
        reasons = ", ".join(f"{count} {reason}" for reason, count in result.misses.items())
        table.add_row("store misses", str(sum(result.misses.values())), f"[dim]{reasons}[/]")
    return table
