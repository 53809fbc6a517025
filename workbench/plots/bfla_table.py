"""BFLA's table 5 in full: every printed setting beside the same at a quarter of its sizes, and the released code's."""

from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go

from workbench.metrics.published_numbers import BFLA_TABLE_5
from workbench.plots.sparse_quality import Measured
from workbench.plots.table import table

SMALLER = 4  # lab prompts are short: blocks, groups and bands are so many times smaller
TILE = 64  # of the method where it is not named
RELEASED = {  # spec → what of the released code it takes over
    "rescue=blocks, anchor=chunk": "released code: coarse rescues, counted from the chunk",
    "rescue=blocks": "released code's coarse rescues alone",
    "anchor=chunk": "released code's count from the chunk alone",
}


def scaled(row: tuple[Any, ...]) -> str:
    """Return the spec of a printed row at a quarter of its sizes, as the results name it."""
    block, flat, mass, local, random, stride = row[:6]
    sizes = f"block={block // SMALLER}, " + (f"tile={block // SMALLER}, " if block // SMALLER < TILE else "")
    spec = f"bfla({sizes}flat={flat // SMALLER}, local={local // SMALLER}, mass={mass:g}"
    return spec + (", stride=0" if not stride else "") + (f", random={random:g})" if random else ")")


def setting(row: tuple[Any, ...]) -> str:
    """Write a printed setting: "b 256, g 64, γ 0.99, band 8, η 16"."""
    block, flat, mass, local, random, stride = row[:6]
    rescues = [f"η {stride}"] * bool(stride) + [f"ρ {random:g}"] * bool(random)
    return ", ".join([f"b {block}, g {flat}, γ {mass:g}, band {local}", *rescues])


def table_5(measured: Measured) -> go.Figure:
    """Tabulate the printed rows, XAttention and dense attention beside ours."""
    dense = float(measured.dense["em"])
    ours = {str(r["spec"]): r for r in measured.settings.to_dict("records")}
    rows, kept = [], []
    for row in BFLA_TABLE_5["rows"]:
        score, density, build = row[6:]
        here = ours.get(scaled(row))
        cells = [f"{score:.2f}", f"{score / BFLA_TABLE_5['dense']:.1%}", f"{density:.1%}", f"{build:.2f}"]
        rows.append([setting(row), *cells, *_own(here, dense)])
        if here:
            kept.append((float(here["em"]) / dense, score / BFLA_TABLE_5["dense"]))
    x = BFLA_TABLE_5["xattention"]
    share = f"{x['score'] / BFLA_TABLE_5['dense']:.1%}"
    rows.append(["XAttention", f"{x['score']:.2f}", share, f"{x['density']:.1%}", f"{x['build_ms']:.2f}", "", "", ""])
    rows.append(["dense", f"{BFLA_TABLE_5['dense']:.2f}", "", "", "", f"{dense:.1%}", "", ""])
    for spec, here in ours.items():
        if name := next((label for end, label in RELEASED.items() if spec.endswith(f"{end})")), ""):
            rows.append([name, "", "", "", "", *_own(here, dense)])
    absent = (
        "; –: not measured yet (data/benchmarks/sparse.py --only bfla)" if len(kept) < len(BFLA_TABLE_5["rows"]) else ""
    )
    return table(
        ["setting", "score", "of dense", "density", "build, ms", "ours: exact match", "of dense", "density"],
        rows,
        widths=[3.9, 0.8, 0.9, 0.9, 0.9, 1.1, 0.9, 0.9],
        title="Table 5 of BFLA in full, and ours",
        notice=said(kept, len(BFLA_TABLE_5["rows"])),
        caption=f"Published: {BFLA_TABLE_5['source']}. Ours: {measured.about()}, blocks, groups and bands "
        f"{SMALLER} times smaller, tiles of {TILE} or of the block{absent}.",
    )


def _own(here: Mapping[str, Any] | None, dense: float) -> list[str]:
    if here is None:
        return ["–", "–", "–"]
    return [f"{here['em']:.1%}", f"{here['em'] / dense:.1%}", f"{here['density']:.1%}"]


def said(kept: list[tuple[float, float]], count: int) -> str:
    """Say what share of the dense score the settings keep, printed and here, and how many are measured."""
    if not kept:
        return f"None of the {count} printed settings is measured yet."
    ours, printed = zip(*kept, strict=True)
    less = sum(own < there for own, there in kept)
    return (
        f"Of the dense score the printed settings keep {min(printed):.0%} to {max(printed):.0%}, the same ones here "
        f"{min(ours):.0%} to {max(ours):.0%}: {less} of {len(kept)} keep less here; {len(kept)} of {count} are "
        "measured."
    )
