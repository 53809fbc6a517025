"""Block fine-tuning: how a tuned model answers beside other methods, by kind of question, and while it is tuned."""

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any, Unpack

import plotly.graph_objects as go

from workbench.data.sample import Sample
from workbench.experiments import results
from workbench.experiments.record import Record
from workbench.methods.answered import Generation
from workbench.metrics.answers import exact_match
from workbench.metrics.published_numbers import TABLE_2
from workbench.plots.findings import compared, joined
from workbench.plots.intervals import forest
from workbench.plots.lines import Panel, Series, line_chart
from workbench.plots.real_tuning import held_out
from workbench.plots.reuse_findings import by_kind as gaps_by_kind
from workbench.plots.reuse_findings import lost, multi_hop
from workbench.plots.styles import MODES
from workbench.plots.table import scored, table
from workbench.plots.theme import BLUE, GREEN, INK, RED, Texts

Answers = Sequence[Generation]
NEAR = 3  # points that count as near full attention
FULL, REUSED = "full attention", "block, not fine-tuned"
TUNED, TUNED_FULL = "block fine-tuned", "block fine-tuned, full mode"
VANILLA = "fine-tuned in full mode alone"  # the control: the same questions, never read as blocks
COLOURS = {  # RED: not fine-tuned to what it does, or without positions
    FULL: INK,
    "Superposition": RED,
    "PromptCache": RED,
    REUSED: RED,
    TUNED: BLUE,
    TUNED_FULL: GREEN,
    "fine-tuned without positions": RED,
    VANILLA: RED,
    f"{VANILLA}, full mode": INK,
}


def comparison(measured: Mapping[str, Any]) -> go.Figure:
    """Draw the scores of all methods of the results file `block-attention`."""
    methods = measured["methods"]
    gap, interval = results.difference(methods[TUNED], methods[FULL])
    gone, ends = results.difference(methods[REUSED], methods[FULL])
    without = compared("passages cached independently", FULL, gone, ends)
    after = compared("the tuned model in block mode", "the model before it in full mode", gap, interval)
    return forest(
        results.rows(methods),
        title="Same prompts, read by several methods",
        notice=f"Without fine-tuning: {without}. After it: {after}. {control(methods)}",
        caption=f"lab-full and lab-block on the lab corpus, n = {measured['samples']:,}, seed {measured['seed']:,}, 10 "
        "passages. Bars are 95% intervals (Wilson), differences paired by question (bootstrap). Orange: not fine-tuned "
        f"to what it does, or without positions. {methods[FULL]['record']['device']}.",
        colours=COLOURS,
        reference=FULL,
    )


def control(methods: Mapping[str, Any]) -> str:
    """Say what fine-tuning in full mode alone gives to block mode, the control of block fine-tuning."""
    if VANILLA not in methods:
        return "Fine-tuning in full mode alone, the control, is not measured yet."
    gap, ends = results.difference(methods[TUNED], methods[VANILLA])
    return f"{compared('Block fine-tuning', 'fine-tuning in full mode alone', gap, ends)}, both in block mode."


def measured_here(records: Mapping[str, Record], *, about: str) -> go.Figure:
    """Draw trials by the name of their method: quality, and tokens and time to the first token."""
    rows = []
    for name, record in records.items():
        quality = [f"{record.em:.0%}", f"{record.em_low:.0%} to {record.em_high:.0%}"]
        rows.append([name, *quality, f"{record.rows_computed:.0f}", f"{record.ttft_s.p50 * 1e3:.1f}"])
    return table(
        ["method", "exact match", "95% interval", "tokens computed", "time to first token (ms)"],
        rows,
        widths=[2.6, 1, 1.4, 1.4, 1.8],
        title="Measured here",
        notice="Block mode computes the question; its passages come from the store. Superposition asks the question "
        "once a passage, and reads the passages to rank them.",
        caption=f"{about}. Tokens and times are to the first token, cached blocks in memory. {records[FULL].device}.",
    )


def by_kind(measured: Mapping[str, Any]) -> go.Figure:
    """Draw the scores of the results file `block-attention` by kind of question."""
    names = [FULL, REUSED, TUNED, TUNED_FULL]
    scores = {name: measured["methods"][name]["record"]["by_kind"] for name in names}
    kinds = [kind for kind in scores[FULL] if kind]
    rows = []
    for kind in kinds:
        cells = [scores[name][kind] for name in names]
        rows.append([kind, f"{cells[0]['n']:,}", *(scored(score) for score in cells)])
    right = {name: results.right(measured["methods"][name]) for name in (FULL, REUSED, TUNED)}
    asked = results.kinds(measured["samples"], measured["seed"])
    before, after = (gaps_by_kind(right[name], right[FULL], asked) for name in (REUSED, TUNED))
    notice = f"{lost(before, 'reuse without fine-tuning')} {lost(after, 'block fine-tuning')}"
    return table(
        ["kind", "n", *names],
        rows,
        widths=[1.2, 0.7, 1.9, 1.9, 1.9, 1.9],
        title="Reuse and fine-tuning, by kind of question",
        notice=f"{notice} {multi_hop(before, 'independent blocks')}",
        caption=f"Exact match with 95% intervals (Wilson), n = {measured['samples']:,}, seed {measured['seed']:,}.",
    )


def tuning_scores(tuning: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the scores of both modes while a model was tuned: records of `steps` from its `tuning.json`."""
    return [{"mode": mode, "step": row["step"], **row[mode]} for row in tuning["scores"] for mode in ("full", "block")]


def tuning_curve(tuning: Mapping[str, Any], name: str) -> go.Figure:
    """Draw the scores of both modes while the model `name` was tuned, from its `tuning.json`.

    Exact match, or KL and likelihood where its teacher was its own full attention.
    """
    scores, recipe = tuning["scores"], tuning["recipe"]
    if recipe.get("teacher") == "self":
        return held_out({"block": tuning})
    behind = scores[0]["full"]["em"] - scores[0]["block"]["em"]
    full = [row["full"]["em"] for row in scores]
    far = [i for i, row in enumerate(scores) if row["block"]["em"] < row["full"]["em"] - 0.02]
    healed = [row["step"] for row in scores[far[-1] + 1 if far else 0 :]]
    side = "behind" if behind >= 0 else "ahead"
    then = f"{side} and is within 2 points of full mode from step {healed[0]:,} on." if healed else f"{side}."
    return steps(
        tuning_scores(tuning),
        title="Both modes while the model is tuned",
        notice=f"Block mode starts {abs(behind) * 100:.0f} points {then} Full mode: {full[0]:.1%} before, "
        f"{full[-1]:.1%} after, {min(full):.1%} at its lowest.",
        caption=f"{name}: {recipe['mode']}, {recipe['steps']:,} steps of {recipe['batch'] * recipe['accumulate']} "
        f"contexts, {recipe['optimizer']} at {recipe['lr']:g}, {tuning['minutes']:.1f} minutes on {tuning['device']}. "
        f"n = {scores[0]['full']['n']:,} held-out questions, 95% intervals (Wilson).",
    )


def without_positions(kept: Mapping[str, Mapping[str, Any]]) -> go.Figure:
    """Draw block mode while two models were tuned, with re-encoded positions ("block") and without ("naive")."""
    rows = [
        {"mode": mode, "step": row["step"], **row["block"]} for mode, curve in kept.items() for row in curve["scores"]
    ]
    last = {mode: curve["scores"][-1] for mode, curve in kept.items()}
    block, naive = (last[mode]["block"] for mode in ("block", "naive"))
    apart = block["em_low"] > naive["em_high"] or naive["em_low"] > block["em_high"]
    return steps(
        rows,
        title="Block mode, tuned with re-encoded positions and without",
        notice=f"After {last['block']['step']:,} steps block mode answers {block['em']:.1%} with re-encoded positions "
        f"and {naive['em']:.1%} without; the intervals {'lie apart' if apart else 'overlap'}.",
        caption=f"Both tuned from lab-full by data/benchmarks/lab_block.sh, n = {block['n']:,} held-out questions, 95% "
        "intervals (Wilson).",
    )


def equal_in_both_modes(full: Answers, block: Answers) -> int:
    """Return how many answers have the same tokens in both modes."""
    return sum(one.tokens == other.tokens for one, other in zip(full, block, strict=True))


def question_by_question(
    samples: Sequence[Sample], before: Answers, block: Answers, full: Answers, *, model: str, tuned: str, about: str
) -> go.Figure:
    """Draw answers of `model` in block mode (`before`) and of `tuned` in both modes, a row a question."""
    rows = []
    for sample, *answers in zip(samples, before, block, full, strict=True):
        marks = ["✓" if exact_match(answer.text, sample.answers) else "✗" for answer in answers]
        said = [f"{mark} {answer.text.strip()}" for mark, answer in zip(marks, answers, strict=True)]
        rows.append([sample.question, sample.kind, sample.answers[0], *said])
    return table(
        ["question", "kind", "expected", f"{model}, block", f"{tuned}, block", f"{tuned}, full"],
        rows,
        widths=[3.5, 1.25, 1.5, 1.7, 1.7, 1.7],
        words=6,
        title="Question by question",
        notice=f"{equal_in_both_modes(full, block)} of {len(rows)} answers of {tuned} are the same in both modes, to "
        "the token.",
        caption=f"{about}, greedy decoding. Full mode before and after block mode: all {len(rows)} answers equal, to "
        "the token.",
    )


def paper_accuracy(measured: Mapping[str, Any]) -> go.Figure:
    """Draw the paper's Table 2 beside the scores of the results file `block-attention`."""
    ours = {name: f"{entry['record']['em'] * 100:.1f}" for name, entry in measured["methods"].items()}
    return table(
        ["method", "lab (ours)", *TABLE_2["data"]],
        [
            [name, ours.get(name, "–"), *(f"{value:.1f}" for value in values)]
            for name, values in TABLE_2["accuracy"].items()
        ],
        widths=[2.4, 1, 1.3, 1.1, 1.3, 1.1],
        title="Published and ours",
        notice=paper_agreement(measured["methods"]),
        caption=f"Published: {TABLE_2['source']}. Ours: exact match in percent, n = {measured['samples']:,}, of the "
        "small lab model on invented facts.",
    )


def paper_agreement(methods: Mapping[str, Any]) -> str:
    """Say of each method whether it stands within 3 points of full attention, on the paper's sets and here."""
    full, *others = TABLE_2["accuracy"]
    others = [name for name in others if name in methods and full in methods]
    here = {name: (methods[name]["record"]["em"] - methods[full]["record"]["em"]) * 100 for name in others}
    paper = {
        name: mean(ours - best for ours, best in zip(TABLE_2["accuracy"][name], TABLE_2["accuracy"][full], strict=True))
        for name in others
    }
    alike = [name for name in others if (paper[name] >= -NEAR) == (here[name] >= -NEAR)]
    apart = [f"{name} ({paper[name]:+z.1f} there, {here[name]:+z.1f} here)" for name in others if name not in alike]
    said = (
        f"Within {NEAR} points of full attention or further off: as in the paper for {joined(alike)}" if alike else ""
    )
    return "; ".join(part for part in (said, f"otherwise for {joined(apart)}" if apart else "") if part) + "."


def steps(records: Sequence[dict[str, Any]], **texts: Unpack[Texts]) -> go.Figure:
    """Draw accuracy in training (Block-Attention, figure 4): `records` {mode, step, n, em, em_low, em_high}."""
    interval_text = "95% interval %{customdata[1]:.1%} to %{customdata[2]:.1%}, n = %{customdata[0]:,}"
    lines = []
    for mode in dict.fromkeys(r["mode"] for r in records):
        rows = sorted((r for r in records if r["mode"] == mode), key=lambda r: r["step"])
        at, em, low, high, n = ([r[key] for r in rows] for key in ("step", "em", "em_low", "em_high", "n"))
        hover = f"step %{{x:,}}: %{{y:.1%}}<br>{interval_text}"
        data = list(zip(n, low, high, strict=True))
        lines.append(Series(MODES[mode].name, at, em, low, high, hover=hover, data=data, look=MODES[mode]))
    across = {"title_text": "step of fine-tuning", "rangemode": "tozero"}
    panel = Panel("", lines, across, {"title_text": "exact match", "tickformat": ".0%", "range": [0, 1.02]})
    return line_chart([panel], above=22, gap=8, **texts)
