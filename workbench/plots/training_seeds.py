"""Headline comparisons over training seeds: block fine-tuning of lab-full, and sparse methods on the harder lab."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go

from workbench.experiments import results, sparse_seeds
from workbench.metrics.seeds import OverSeeds, crossed
from workbench.plots.faithful_answers import CROSSED
from workbench.plots.findings import compared, joined, sentence
from workbench.plots.styles import SPARSE_METHODS
from workbench.plots.table import table

Content = Mapping[str, Any]
NO_NEEDLES = "Not measured over training seeds yet: python data/benchmarks/needles_seeds.py"
NO_SPARSE = "Not measured over training seeds yet: python data/benchmarks/sparse_seeds.py"
KEPT = 0.33  # of the pairs: the settings of which sentences speak
DRAWN = "random("


def sparse_methods() -> go.Figure | None:
    """Tabulate sparse methods over training seeds, the sparsest first; None where they were not measured."""
    if "sparse-seeds" not in results.names():
        return None
    content = sparse_seeds.kept()
    rows = []
    for spec in sparse_seeds.specs(content):
        shares = [sum(each) / len(each) for each in sparse_seeds.digits(content, spec)]
        gap = "" if spec == sparse_seeds.DENSE else points(sparse_seeds.gap(content, spec))
        kept = [f"{share(content, spec):.0%}" for share in (sparse_seeds.density, sparse_seeds.attended)]
        one_by_one = ", ".join(f"{share:.0%}" for share in shares)
        rows.append([spec.replace(", ", " "), *kept, scored(sparse_seeds.share(content, spec)), gap, one_by_one])
    return table(
        ["setting", "density", "attended", "exact match", "points to dense", "by training"],
        rows,
        widths=[3.6, 0.8, 0.9, 1.7, 1.8, 1.5],
        title="Sparse methods over training seeds",
        notice=said_of_sparse(content),
        caption=f"{content['model']} of {trainings(len(shares))}, weights in 8 bits, on {content['data']}, "
        f"{content['passages']} passages ({content['tokens']:,.0f} tokens), chunks of {content['chunk']}, n = "
        f"{content['samples']:,} questions each, seed {content['seed']:,}; {CROSSED}; attended: by "
        "CompactAttention the union of what a chunk's queries and a group's heads choose; densities of the first "
        f"{content['settings'][sparse_seeds.DENSE]['1']['prompts']} prompts. data/benchmarks/sparse_seeds.py.",
    )


def said_of_sparse(content: Content) -> str:
    """Say how the best setting of every method of at most KEPT compares with dense, and random tiles with BFLA."""
    names = dict.fromkeys(spec.split("(")[0] for spec in sparse_seeds.specs(content) if spec != sparse_seeds.DENSE)
    parts, seeds = [], 0
    for name in names:
        if best := sparse_seeds.best(content, f"{name}(", KEPT):
            gap = sparse_seeds.gap(content, best)
            seeds = gap.seeds
            chosen, read = (share(content, best) for share in (sparse_seeds.density, sparse_seeds.attended))
            union = f", {read:.0%} attended" if read > chosen else ""
            kept = f"{SPARSE_METHODS.name_of(best)} ({chosen:.0%}{union})"
            parts.append((gap.mean, beside(kept, "dense", gap)))
    order = [text for _, text in sorted(parts, reverse=True)]
    sparsest = f"Choosing at most {KEPT:.0%} of the pairs, {trainings(seeds)}: {'; '.join(order)}. " if order else ""
    return sparsest + said_of_random(content)


def needles() -> go.Figure | None:
    """Tabulate needle tasks over training seeds, by method; None where they were not measured."""
    if "needles-seeds" not in results.names():
        return None
    content = results.read("needles-seeds")
    rows, texts, count = [], [], 0
    for task, by_spec in content["tasks"].items():
        dense = sparse_seeds.rights(by_spec[sparse_seeds.DENSE])
        if np.min(dense) == 1:
            texts.append(f"{task}: dense attention answers every question, which ranks nothing")
        for spec, by_seed in by_spec.items():
            digits = sparse_seeds.rights(by_seed)
            gap, count = crossed(np.subtract(digits, dense).tolist()), len(digits)
            name = SPARSE_METHODS.name_of(spec)
            one_by_one = ", ".join(f"{np.mean(each):.0%}" for each in digits)
            against = "" if spec == sparse_seeds.DENSE else points(gap)
            rows.append([name, task, scored(crossed(digits)), against, one_by_one])
            if against and np.min(dense) < 1:
                texts.append(f"{task}: {beside(name, 'dense', gap)}")
    return table(
        ["method", "task", "exact match", "points to dense", "by training"],
        rows,
        words=2,
        widths=[2.8, 1.2, 1.7, 1.8, 1.5],
        title="Needles over training seeds (CompactAttention, figure 2)",
        notice=f"{trainings(count)}. {'; '.join(texts)}.",
        caption=f"{content['model']}, weights in 8 bits, {content['passages']} passages, chunks of {content['chunk']}, "
        f"n = {content['samples']:,} questions each, seed {content['seed']:,}; {CROSSED}. "
        f"{', '.join(spec for spec in by_spec)}. data/benchmarks/needles_seeds.py.",
    )


def said_of_random(content: Content) -> str:
    """Say how tiles drawn at random compare with the setting of BFLA whose density is nearest."""
    texts = []
    for drawn in sparse_seeds.specs(content, DRAWN):
        at = sparse_seeds.density(content, drawn)
        others = sparse_seeds.specs(content, "bfla(")
        if others:
            near = min(others, key=lambda spec: abs(sparse_seeds.density(content, spec) - at))
            kept = f"BFLA ({sparse_seeds.density(content, near):.0%})"
            texts.append(beside(f"random tiles ({at:.0%})", kept, sparse_seeds.gap(content, drawn, near)))
    return sentence(joined(texts)) if texts else ""


def beside(one: str, other: str, gap: OverSeeds) -> str:
    """Say a difference over training seeds by its sign and interval."""
    return compared(one, other, gap.mean, (gap.low, gap.high))


def trainings(count: int) -> str:
    """Return "1 training" or "3 trainings"."""
    return f"{count} training{'' if count == 1 else 's'}"


def scored(share: OverSeeds) -> str:
    """Return a share with its interval, as a cell of a table."""
    return f"{share.mean:.1%} ({share.low:.0%}–{share.high:.0%})"


def points(gap: OverSeeds) -> str:
    """Return a difference in points with its interval, as a cell of a table."""
    return f"{100 * gap.mean:+z.1f} ({100 * gap.low:+z.1f} to {100 * gap.high:+z.1f})"
