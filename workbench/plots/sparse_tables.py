"""Tables of sparse methods: settings, thresholds that keep enough, a crossover, one's own prompts."""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from workbench.core.blocks import Prompt
from workbench.experiments import results
from workbench.methods import sparse
from workbench.plots import sparse_findings
from workbench.plots.intervals import SCORES
from workbench.plots.sparse_quality import OF_ANSWERS, STATIC, Measured, Records, nearest
from workbench.plots.styles import SPARSE_METHODS
from workbench.plots.table import scored, table

BESIDE_BFLA = ("flash_prefill", "xattention", "seer_attention", "quoka", "vertical_slash")
WITHOUT_FULL_ROWS = ("bfla", "xattention", *STATIC)  # methods that keep no query tile in full


def settings_table(measured: Measured) -> go.Figure:
    """Tabulate settings of BFLA, one of each other published rule, and dense attention (BFLA, table 5)."""
    curve, dense = measured.curve, measured.dense
    bfla = measured.settings[measured.settings.group == "table"]
    others = curve[curve.method.isin(BESIDE_BFLA)].groupby("method", sort=False)
    middle = others.nth(others.size().min() // 2)
    few, *_, many = curve[curve.method == "bfla"].sort_values("value").to_dict("records")
    rows = [
        [
            r["spec"].replace(", ", " "),
            scored(r, form=".0%"),
            *(f"{share:.1%}" for share in (r["density"], 1 - r["density"])),
            *(f"{r['mass']:.0%}", f"{r['error']:.2f}"),
        ]
        for r in [*bfla.to_dict("records"), *middle.to_dict("records"), dense]
    ]
    return table(
        ["setting", "exact match", "density", "sparsity", "mass", "error"],
        rows,
        widths=[4.4, 1.7, 0.8, 0.9, 0.7, 0.7],
        title="Settings of BFLA and others (BFLA, table 5)",
        notice=f"BFLA's γ from {few['value']:g} to {many['value']:g} moves the density from {few['density']:.0%} to "
        f"{many['density']:.0%} (block 64, flat 4, local 1); band, rescues and larger blocks from "
        f"{bfla.density.min():.0%} to {bfla.density.max():.0%} (listed). "
        f"{sparse_findings.bfla_beside_dense(measured.settings, dense)}",
        caption=f"{measured.about()}; kept shares are means over layers, heads and {int(dense['prompts']):,} prompts; "
        f"{dense['device']}.",
    )


def last_rows_table(measured: Measured, without: Mapping[str, Mapping[str, Any]]) -> go.Figure:
    """Tabulate methods with and without their rule that the last query tiles are kept in full.

    `without`: spec → {with: spec under the rule, record, right}, the results named last-rows.
    """
    rows, instead, gaps = [], [], []
    for spec, entry in without.items():
        (had,) = measured.settings[measured.settings.spec == entry["with"]].to_dict("records")
        lost, name = entry["record"], SPARSE_METHODS.name_of(spec)
        right = "".join(str(int(digit)) for digit in measured.answers[f"em {entry['with']}"])
        gap, (low, high) = results.difference(entry, {"right": right})
        densities = f"{lost['sparsity']['density']:.0%} ({had['density']:.0%} with)"
        gaps.append((gap, (low, high)))
        points_lost = f"{gap * 100:+z.1f} ({low * 100:+z.1f} to {high * 100:+z.1f})"
        rows.append([name, densities, scored(had), scored(lost), points_lost])
        instead.append(f"{name} answers {lost['em']:.0%} instead of {had['em']:.0%}")
    target = sum(entry["record"]["sparsity"]["density"] for entry in without.values()) / len(without)
    near = nearest(measured.curve[measured.curve.method.isin(WITHOUT_FULL_ROWS)], target)
    for r in near.sort_values("em", ascending=False).to_dict("records"):
        rows.append([SPARSE_METHODS.name_of(r["spec"]), f"{r['density']:.0%}", "no such rule", scored(r), ""])
    methods_apart = float(near.em.max() - near.em.min())
    lacking = sparse_findings.without_rule_lacking(measured.settings.spec, without)
    return table(
        ["method", "density", "with the rule", "without", "difference (points)"],
        rows,
        widths=[2, 1.5, 1.9, 1.9, 2.4],
        title="Exact match with the last query tile whole, and with it chosen like any other",
        notice=f"Without it {' and '.join(instead)}. {sparse_findings.of_last_rows(gaps, methods_apart)}{lacking}",
        caption=f"{measured.about()}; 95% intervals (Wilson), differences paired by question (bootstrap). Without the "
        f"rule: {lost['device']}; those without one: the setting of nearest density.",
    )


def threshold_table(measured: Measured, chosen: Records, measure: str, keep: float) -> go.Figure:
    """Tabulate the sparsest setting of every method that keeps enough: `metrics.thresholds.cheapest`."""
    enough = [r for r in chosen if r["spec"]]
    words = SCORES.get(measure, measure)
    sparsest = f"; the sparsest is {enough[0]['spec']} with {enough[0]['density']:.0%} of the pairs" if enough else ""
    names = measured.curve.groupby("method").spec.first().map(SPARSE_METHODS.name_of)
    rows = []
    for r in chosen:
        kept = ["none measured", "", ""]
        if r["spec"]:
            option, _ = sparse.named(r["spec"]).threshold_steps
            kept = [f"{option} = {r['value']:g}", f"{r['density']:.0%}", f"{r['union']:.0%}"]
        reached = [f"{r['reached']:.1%}", f"{r['low']:.1%} to {r['high']:.1%}", "yes" if r["sure"] else "no"]
        rows.append([names[r["method"]], *kept, *reached])
    return table(
        ["method", "threshold", "density", "after union", words, "95% interval", "sure"],
        rows,
        words=2,
        widths=[2.9, 1.8, 0.8, 1.1, 0.9, 1.6, 0.6],
        title=f"Which threshold keeps {keep:.0%} of {words}?",
        notice=f"{len(enough)} of {len(chosen)} methods have a threshold that keeps it{sparsest}. “Sure”: the 95% "
        f"interval keeps it as well; {sum(r['sure'] for r in chosen)} do.",
        caption=f"{measured.about()}; sure, for exact match: of the questions that dense attention answers right "
        "(Wilson). After union: pairs read by one page list for a chunk and the heads of a KV head. Other options as "
        "in data/benchmarks/sparse.py.",
    )


def crossover_table(records: Records, model: str, large: str, *, kept_share: float, gain: float) -> go.Figure:
    """Tabulate from which length on a prefill is cheaper: `metrics.crossover.crossings` of "own" and of `large`.

    `model` is the name of the first one; what a choice costs is counted for the second one.
    """
    rows = []
    for r in records:
        spec = r["spec"] + (f", chunks of {r['chunk']}" if r["chunk"] else "")
        lengths = [f"{r[key]:,}" if r[key] else "never" for key in ("own", large)]
        rows.append([spec, f"{r['forced']:.0%}", f"{r['forced_long']:.0%}", f"{r['choice']:.1%}", *lengths])
    return table(
        ["published defaults", "kept, 2K", "kept, 32K", "choice, 32K", "this model", large],
        rows,
        widths=[4.4, 1, 1.1, 1.2, 1.1, 1.1],
        title=f"From how many tokens on is a whole prefill {gain:.0%} cheaper?",
        notice="Kept: pairs that sink, band, full rows or the chunk itself hold on to, whatever the scores. "
        f"{sparse_findings.which_pays_first(records, model, large)}",
        caption=f"Operations of {model} and {large}; choice: share of dense attention; of the tiles that may be left "
        f"out {kept_share:.0%} are kept. Lengths in steps of a quarter octave, to 1,048,576.",
    )


def own_table(records: Records, prompts: Sequence[Prompt], keep: float, about: str) -> go.Figure:
    """Tabulate thresholds found on the reader's prompts: `metrics.thresholds.answered`."""
    tokens = sum(len(prompt) for prompt in prompts) / len(prompts)
    rows = []
    for r in records:
        missing = "not reached" if r["option"] else ""
        threshold = missing if r["value"] is None else f"{r['option']} = {r['value']:g}"
        kept = [f"{r['density']:.0%}", f"{r['mass']:.1%}"]
        answers = ["" if r[key] is None else format(r[key], form) for key, form in OF_ANSWERS.items()]
        rows.append([SPARSE_METHODS.name_of(r["method"]), threshold, *kept, *answers])
    return table(
        ["method", "threshold", "density", "mass", "same next token", "KL (nats)", "right answers"],
        rows,
        words=2,
        widths=[2, 1.8, 1, 1, 1.3, 1.1, 1.2],
        title=f"Thresholds that keep {keep:.0%} of the mass, found here",
        notice=f"Sparsest: {SPARSE_METHODS.name_of(records[0]['method'])} with {records[0]['density']:.0%} of the "
        "pairs. The oracle knows the true mass of every tile. Mass is a mean over all rows; the answer is read off "
        "the last one.",
        caption=f"{about}; means over layers and heads, prompts of {tokens:,.0f} tokens.",
    )
