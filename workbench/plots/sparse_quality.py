"""Quality against density and cost of sparse methods, from measured settings to figures and what they show; see
notebooks/10_sparse_quality.ipynb."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import itemgetter
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from workbench.core.blocks import Prompt
from workbench.experiments import results
from workbench.methods import sparse
from workbench.metrics.crossover import CrossoverModel, costs, first_paying
from workbench.plots import sparse_findings
from workbench.plots.heads import by_head
from workbench.plots.intervals import forest
from workbench.plots.lines import plane, planes, points, profile, profiles
from workbench.plots.looks import SPARSE_METHODS, line_looks, looks_of
from workbench.plots.table import scored, table

Records = Sequence[Mapping[str, Any]]
STATIC = ("random", "strided", "window")  # methods that do not look at the content
BESIDE_BFLA = ("flash_prefill", "xattention", "seer_attention", "quoka", "vertical_slash")
BY_HEAD = ("oracle", "bfla", "flash_prefill", "xattention", "seer_attention")
WITHOUT_FULL_ROWS = ("bfla", "xattention", *STATIC)  # methods that keep no query tile in full
LEARNED = ("single", "multi-key", "tracking")  # needle tasks of the lab model's training
TASKS = ("all", *LEARNED, "multi-value", "common")
OF_ANSWERS = {"agree": ".0%", "kl": ".3f", "right": ".0f"}  # field → form of measures that may be unknown


@dataclass(frozen=True, eq=False)
class Measured:
    """What `data/benchmarks/sparse.py` measured: every sparse method at several thresholds, on the same questions."""

    table: pd.DataFrame  # a row a setting, kind of data and kind of question
    answers: pd.DataFrame  # a row a question of the lab corpus; "em <spec>" is 1 where it was answered right
    settings: pd.DataFrame  # rows of the lab corpus, all questions; `cost`: operations, as a share of dense attention's

    @classmethod
    def of(cls, model: CrossoverModel) -> "Measured":
        """Read what ships; costs are those of `model`."""
        swept, answers = results.table("sparse"), results.table("sparse-answers")
        lab = swept[(swept.data == "lab") & (swept.kind == "all")]
        return cls(swept, answers[answers.data == "lab"], lab.assign(cost=costs(model, lab.to_dict("records"))))

    @cached_property
    def curve(self) -> pd.DataFrame:
        """The settings that differ by their threshold alone."""
        return self.settings[self.settings.group == "curve"]

    @cached_property
    def dense(self) -> dict[str, Any]:
        """The row of dense attention."""
        (row,) = self.settings[self.settings.method == "dense"].to_dict("records")
        return row

    def about(self, count: str = "") -> str:
        """Say how it was measured; `count` in place of the number of questions."""
        dense = self.dense
        questions = f"n = {dense['n']:,} questions"
        return (
            f"lab-full on the lab corpus, {dense['passages']} passages ({int(dense['tokens']):,} tokens), chunks of "
            f"{dense['chunk']}, {count or questions}, seed {dense['seed']:,}"
        )


def quality_planes(measured: Measured, keep: float) -> go.Figure:
    """Draw exact match against density and operations, and name the cheapest rule that keeps `keep` of dense's."""
    curve, dense = measured.curve, measured.dense
    published = curve[~curve.method.isin(["dense", "oracle", *STATIC])]
    best = published[published.em >= keep * dense["em"]].sort_values("cost")
    cheapest = f"{best.spec.iloc[0]} at {best.cost.iloc[0]:.0%} of the operations" if len(best) else ""
    preliminary = "" if dense["n"] >= 500 else f"Preliminary, n = {dense['n']}. "
    panels = (
        ("by density", "density", "share of causal pairs kept", "exact match"),
        ("by operations", "cost", "operations, choice included (dense = 100%)", ""),
    )
    return planes(
        [plane(name, points(curve, x, "em"), across, up, dense["em"]) for name, x, across, up in panels],
        looks_of(curve.spec),
        title="Quality against density and cost (CompactAttention, figure 1)",
        notice=f"{preliminary}Dense attention: {dense['em']:.1%} (dotted). The cheapest published rule within "
        f"{1 - keep:.0%} of it: {cheapest or 'no setting that is listed'}. "
        f"{sparse_findings.random_beside(curve, measured.answers)}",
        caption=f"{measured.about()}; bars: 95% intervals (Wilson). Oracle: fewest tiles by true mass, at the price of "
        "all of it.",
    )


def settings_table(measured: Measured) -> go.Figure:
    """Tabulate settings of BFLA, one of each other published rule, and dense attention (BFLA, table 5)."""
    curve, dense = measured.curve, measured.dense
    bfla = measured.settings[measured.settings.group == "table"]
    others = curve[curve.method.isin(BESIDE_BFLA)].groupby("method", sort=False)
    middle = others.nth(others.size().min() // 2)
    few, *_, many = curve[curve.method == "bfla"].sort_values("value").to_dict("records")
    rows = [
        [
            r["spec"].replace("vertical_slash", "vs").replace(", ", " "),
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
        points_lost = f"{gap * 100:+.1f} ({low * 100:+.1f} to {high * 100:+.1f})"
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


def nearest(settings: pd.DataFrame, density: float) -> pd.DataFrame:
    """Return of every method the setting whose density is nearest, the nearest first."""
    return settings.iloc[(settings.density - density).abs().argsort(kind="stable")].drop_duplicates("method")


def loss_planes(measured: Measured) -> go.Figure:
    """Draw mass, error, recall and divergence against density."""
    curve, dense = measured.curve[measured.curve.method != "dense"], measured.dense
    prompts = f"{int(dense['prompts']):,} prompts"
    at_half = curve[(curve.density > 0.3) & (curve.density < 0.6)].sort_values("error")
    first, last = at_half.iloc[0], at_half.iloc[-1]
    panels: dict[str, tuple[str, dict[str, Any]]] = {
        "mass": ("attention mass kept", {}),
        "error": ("error of the output (relative L2)", {"percent": False}),
        "recall": ("recall of the largest tiles", {}),
        "kl": ("KL of the next token (nats)", {"percent": False, "log": True}),
    }
    return planes(
        [plane(name, points(curve, "density", y), "density", **form) for y, (name, form) in panels.items()],
        looks_of(measured.curve.spec),
        title="Mass, error, recall and divergence against density",
        notice=f"Between 30% and 60% density, error is smallest with {first.spec} ({first.error:.2f}) and largest with "
        f"{last.spec} ({last.error:.2f}). {sparse_findings.mass_and_answers(curve)}",
        caption=f"{measured.about(prompts)}; means over layers and heads; bars: 95% intervals (bootstrap over "
        f"prompts). KL over the question's rows, {dense['n']:,} prompts.",
        height=280,
    )


def heads_at(measured: Measured, heads: pd.DataFrame, density: float = 0.4) -> go.Figure:
    """Draw mass and density of every layer and head, of settings near one density; `heads`: the table sparse-heads."""
    specs = nearest(measured.curve[measured.curve.method.isin(BY_HEAD)], density).sort_values("mass").spec
    grids: dict[str, dict[str, np.ndarray]] = {"mass": {}, "density": {}}  # measure → method → [L, Hq]
    for measure, by_method in grids.items():
        for spec in specs:
            grid = heads[heads.spec == spec].pivot(index="layer", columns="head", values=measure)
            by_method[SPARSE_METHODS.name_of(spec)] = grid.to_numpy(np.float32)
    worst = ", ".join(f"{name} {float(z.min()):.0%}" for name, z in grids["mass"].items())
    return by_head(
        grids,
        layers=range(len(next(iter(grids["mass"].values())))),
        title=f"By layer and head, at densities near {density:.0%}",
        notice=f"The head that keeps least: {worst}. {sparse_findings.densities_apart(grids['density'])}",
        caption=f"{measured.about(f'{int(heads.prompts.max())} prompts')}; {'; '.join(specs)}.",
    )


def threshold_table(measured: Measured, chosen: Records, measure: str, keep: float) -> go.Figure:
    """Tabulate the sparsest setting of every method that keeps enough: `metrics.thresholds.cheapest`."""
    enough = [r for r in chosen if r["spec"]]
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
        ["method", "threshold", "density", "after union", measure, "95% interval", "sure"],
        rows,
        words=2,
        widths=[2.9, 1.8, 0.8, 1.1, 0.9, 1.6, 0.6],
        title=f"Which threshold keeps {keep:.0%} of {measure}?",
        notice=f"{len(enough)} of {len(chosen)} methods have a threshold that keeps it{sparsest}. “Sure”: the 95% "
        f"interval keeps it as well; {sum(r['sure'] for r in chosen)} do.",
        caption=f"{measured.about()}; sure, for em: of the questions that dense attention answers right (Wilson). "
        "After union: pairs read by one page list for a chunk and the heads of a KV head. Other options as in "
        "data/benchmarks/sparse.py.",
    )


def needles_by_task(measured: Measured, chosen: Records) -> go.Figure:
    """Draw exact match by needle task, of the settings in `chosen` (of a method without one: its densest)."""
    curve, dense = measured.curve, measured.dense
    needles = measured.table[(measured.table.data == "needles") & (measured.table.group == "curve")]
    densest = curve.sort_values("density").groupby("method").spec.last()
    wanted = [dense["spec"], *(r["spec"] or densest[r["method"]] for r in chosen)]
    specs = [spec for spec in wanted if spec in set(needles.spec)]
    density = dict(zip(curve.spec, curve.density, strict=True))
    looks = {spec: looks_of(curve.spec)[SPARSE_METHODS.name_of(spec)] for spec in specs}
    names = {
        spec: f"{look.name.replace('CompactAttention', 'Compact')} ({density[spec]:.0%})"
        for spec, look in looks.items()
    }
    records = [
        {**r, "name": names[spec]}
        for spec in specs
        for task in TASKS
        for r in needles[(needles.spec == spec) & (needles.kind == task)].to_dict("records")
    ]
    hay = needles[needles.method == "dense"].set_index("kind")
    learned = {task: [r for r in records if r["kind"] == task] for task in LEARNED if task in set(needles.kind)}
    full = ", ".join(f"{task} {hay.em[task]:.0%}" for task in learned)
    worst = {task: min(rows, key=itemgetter("em")) for task, rows in learned.items()}
    lowest = [f"{task} {r['em']:.0%} with {r['name']}" for task, r in worst.items()]
    return forest(
        records,
        title="Needles, by task",
        notice=f"Dense attention (dotted): {full}. Lowest: {', '.join(lowest)}.",
        caption=f"lab-full, {hay.passages['all']} passages ({hay.tokens['all']:,.0f} tokens), chunks of "
        f"{hay.chunk['all']}; n = {', '.join(f'{hay.n[task]:,} ({task})' for task in TASKS if task in hay.index)}; the "
        "setting of each method from the table above, its density on lab prompts in brackets; 95% intervals (Wilson).",
        colours={names[spec]: look.colour for spec, look in looks.items()},
        marks={names[spec]: look.symbol for spec, look in looks.items()},
        reference=names[dense["spec"]],
    )


def choice_times(records: Records, shape: tuple[int, int, int], repeats: int, device: str) -> go.Figure:
    """Draw `metrics.crossover.with_saved`; `shape`: query heads, KV heads and width of a head."""
    heads, kv_heads, width = shape
    attend = {r["length"]: r["seconds"] for r in records if not r["name"]}
    pays = first_paying(records)
    early = sorted((length, rule) for rule, length in pays.items() if length)
    paying = ", ".join(f"{length:,} tokens ({SPARSE_METHODS.name_of(rule)})" for length, rule in early)
    late = [SPARSE_METHODS.name_of(rule) for rule, length in pays.items() if not length]
    never = f"; at no length here: {', '.join(late)}." if late else " on."
    looks = {rule: SPARSE_METHODS.of(rule) for rule in pays}
    looks[""] = replace(SPARSE_METHODS["dense"], name="dense attention itself")
    drawn = [{**r, "name": looks[r["name"]].name, "at": r["length"]} for r in records]
    choosing = [r for r, of in zip(drawn, records, strict=True) if of["name"]]
    shares = {
        "always kept, whatever the scores": [{**r, "mean": r["forced"]} for r in choosing],
        "time saved at best, of dense attention": [{**r, "mean": r["saved"] / attend[r["at"]]} for r in choosing],
    }
    return profiles(
        [
            profile("time of one layer (ms)", [{**r, "mean": r["seconds"] * 1e3} for r in drawn], "tokens", log=True),
            *(profile(name, share, "tokens", percent=True) for name, share in shares.items()),
        ],
        title="Time to choose beside time that can be saved",
        notice=f"It can pay from {paying or 'no length'}{never} Below zero (right) a perfect kernel could not make up "
        "for the choice.",
        caption=f"Random states, {heads} heads of {width} over {kv_heads} KV heads, fp32, whole prompt at once, median "
        f"of {repeats}, {device}. Saved at best: what is not always kept, less the choice.",
        lines=2,
        zero=False,
        **line_looks(looks.values()),
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
