"""FusionRAG's table 2 and figure 2 on lab questions: how faithful answers are, and the level of a smaller model."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import cycle
from typing import Any

import plotly.graph_objects as go

from workbench.experiments import faithful_results as kept
from workbench.metrics.paired import difference
from workbench.metrics.published_numbers import FUSION_RAG_TABLE_2
from workbench.metrics.seeds import crossed
from workbench.plots.dots import Column, dots
from workbench.plots.elements import interval
from workbench.plots.findings import compared, joined, judged
from workbench.plots.styles import Look
from workbench.plots.theme import BLUE, INK, MUTED, ORANGE, SKY, finish

PAPER, OTHERS = kept.OURS, kept.BASELINES
CROSSED = "intervals of 95%, seeds and questions resampled"
NO_FILE = "Not measured yet: python data/benchmarks/faithful.py"
NO_SIZES = "No two sizes of a lab model have answered the same questions yet: data/benchmarks/faithful.py says how"


def faithfulness(model: str = "lab-full") -> go.Figure | None:
    """Draw faithful and right answers by method, and what table 2 prints as rings; None where it was not measured."""
    one = kept.kept().get(model)
    if one is None:
        return None
    rows = kept.rows(one)
    fig = go.Figure()
    for score, colour, shift in (("faithful", BLUE, -0.08), ("right", ORANGE, 0.08)):
        own = [row for row in rows if row["score"] == score]
        middle, low, high = ([row[key] for row in own] for key in ("mean", "low", "high"))
        fig.add_scatter(
            x=[at + shift for at in range(len(own))],
            y=middle,
            error_y=interval(middle, low, high),
            mode="markers",
            marker={"color": colour, "size": 10},
            name=f"{score}, {model} on {one['data']}",
            customdata=[[row["method"], row["n"]] for row in own],
            hovertemplate="%{customdata[0]}: %{y:.1%}, n = %{customdata[1]:,}<extra>" + score + "</extra>",
        )
    names = list(one["methods"])
    rings = [
        (names.index(method) + 0.24, value, " on ".join(case))
        for case, values in FUSION_RAG_TABLE_2["faithfulness"].items()
        for method, value in zip(FUSION_RAG_TABLE_2["methods"], values, strict=True)
        if method in names
    ]
    fig.add_scatter(
        x=[at for at, _, _ in rings],
        y=[value for _, value, _ in rings],
        mode="markers",
        marker={"color": MUTED, "symbol": "circle-open", "size": 8, "line": {"color": INK}},
        name="faithful, published (judged by a language model)",
        customdata=[case for _, _, case in rings],
        hovertemplate="%{customdata}: %{y:.1%}<extra>published</extra>",
    )
    fig.update_xaxes(tickvals=list(range(len(names))), ticktext=names, range=[-0.5, len(names) - 0.5], showgrid=False)
    fig.update_yaxes(tickformat=".0%", range=[0, 1.03])
    return finish(
        fig,
        title="Faithful answers (FusionRAG, table 2)",
        notice=said(one),
        caption=f"{one['samples']} questions over {one['passages']} passages, seed {one['seed']}; {one['ratio']:.0%} "
        "recomputed where a selector chooses. An answer is one claim, faithful where its passages state it of "
        f"the same subject: lab facts are read back, no model judges. Rings: {FUSION_RAG_TABLE_2['source']}.",
        height=320,
        legend=8,
    )


def said(one: Mapping[str, Any]) -> str:
    """Say how FusionRAG's answers compare with those of the other methods, question by question."""
    gaps = {other: _gap(one, other) for other in OTHERS}
    parts = [compared(PAPER, other, gap, ends) for other, (gap, ends) in gaps.items()]
    above = all(low > 0 for _, (low, _) in gaps.values())
    below = any(high < 0 for _, (_, high) in gaps.values())
    claim = "its answers are the most faithful"
    return f"Faithful: {'; '.join(parts)}. {judged('FusionRAG', claim, True if above else False if below else None)}"


def _gap(one: Mapping[str, Any], other: str) -> tuple[float, tuple[float, float]]:
    found = difference(kept.digits(one, PAPER, "faithful"), kept.digits(one, other, "faithful"))
    return found.mean, (found.low, found.high)


def smaller_model() -> go.Figure | None:
    """Draw every method on the larger model over full attention on the smaller (figure 2); None without two sizes."""
    if not (pairs := kept.two_sizes()):
        return None
    methods = [name for name in pairs[0][1]["methods"] if all(name in large["methods"] for _, large in pairs)]
    gaps = [kept.against_smaller(method) for method in methods]
    middle, low, high = ([100 * getattr(gap, end) for gap in gaps] for end in ("mean", "low", "high"))
    fig = go.Figure()
    fig.add_scatter(
        x=middle,
        y=methods,
        error_x=interval(middle, low, high),
        mode="markers",
        marker={"color": BLUE, "size": 10},
        hovertemplate="%{y}: %{x:+.1f} points<extra></extra>",
        showlegend=False,
    )
    fig.add_vline(0, line={"color": INK, "width": 1, "dash": "dot"})
    fig.update_xaxes(title_text="points above the smaller model under full attention")
    fig.update_yaxes(autorange="reversed")
    level = [
        f"{name} {value:+z.1f} [{a:+z.1f}, {b:+z.1f}]"
        for name, value, a, b in zip(methods, middle, low, high, strict=True)
    ]
    return finish(
        fig,
        title="Methods on a larger model beside a smaller one (FusionRAG, figure 2)",
        notice=f"Over the smaller model's full attention, points: {joined(level)}.",
        caption=f"{len(pairs)} training seeds, n = {gaps[0].n:,} questions each, on {pairs[0][0]['data']}; 15% "
        f"recomputed where a selector chooses; {CROSSED}. Published: at 15% CacheBlend and Cache-Craft on Qwen2.5-7B "
        "stand where 3B stands.",
        height=220,
        left=150,
    )


def ranked_over_seeds() -> go.Figure | None:
    """Draw right and faithful answers by method of models that were trained from several seeds; None without any."""
    models = {size: kept.over_seeds(size) for size in kept.sizes()}
    if not models:
        return None
    columns = []
    for score in ("right", "faithful"):
        rows = [
            {"name": method, "series": size, "mean": mean.mean, "low": mean.low, "high": mean.high}
            for size, seeds in models.items()
            for method in seeds[0]["methods"]
            if all(method in one["methods"] for one in seeds)
            for mean in [crossed([kept.digits(one, method, score) for one in seeds])]
        ]
        columns.append(Column(f"{score} answers", "share", rows, percent=True))
    marks = (Look(SKY, "circle"), Look(BLUE, "square"), Look(INK, "diamond"))
    looks = {size: replace(mark, name=size) for size, mark in zip(models, cycle(marks), strict=False)}
    first = next(iter(models.values()))[0]
    counts = joined([f"{size} {len(seeds)}" for size, seeds in models.items()])
    return dots(
        columns,
        looks,
        spread=True,
        title="Methods at 15% on the harder lab, over training seeds",
        notice=" ".join(said_over_seeds(size, seeds) for size, seeds in models.items()),
        caption=f"Training seeds: {counts}; n = {first['samples']:,} questions each on {first['data']}, "
        f"{first['passages']} passages; {CROSSED}. data/benchmarks/faithful.py.",
    )


def said_over_seeds(size: str, models: Sequence[Mapping[str, Any]]) -> str:
    """Say how FusionRAG's right and faithful answers compare with the baselines' over training seeds."""
    texts, above, below = [], [], []
    for score in ("right", "faithful"):
        gaps = {other: kept.gap(models, PAPER, other, score) for other in OTHERS}
        parts = [compared(PAPER, other, gap.mean, (gap.low, gap.high)) for other, gap in gaps.items()]
        texts.append(f"{score}: {'; '.join(parts)}")
        above += [gap.low > 0 for gap in gaps.values()]
        below += [gap.high < 0 for gap in gaps.values()]
    verdict = True if all(above) else False if any(below) else None
    return f"{size}, {'. '.join(texts)}. {judged('FusionRAG', 'it is better than both at 15%', verdict)}"
