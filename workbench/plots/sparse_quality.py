"""Quality against density and cost of sparse methods, as measured: see notebooks/10_sparse_quality.ipynb."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import itemgetter
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from workbench.experiments import results
from workbench.metrics.crossover import CrossoverModel, costs, first_paying
from workbench.plots import sparse_findings
from workbench.plots.heads import by_head
from workbench.plots.intervals import forest
from workbench.plots.line_styles import line_looks
from workbench.plots.lines import plane, planes, points, profile, profiles
from workbench.plots.styles import SPARSE_METHODS, looks_of

Records = Sequence[Mapping[str, Any]]
STATIC = ("random", "strided", "window")  # methods that do not look at the content
BY_HEAD = ("oracle", "bfla", "flash_prefill", "xattention", "seer_attention")
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
