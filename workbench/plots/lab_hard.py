"""The harder lab over training seeds: full attention, reuse and preparations of models of two sizes."""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from workbench.experiments import lab_hard_results as kept
from workbench.metrics.seeds import OverSeeds, gap_over_seeds, over_seeds
from workbench.plots.elements import interval
from workbench.plots.findings import joined
from workbench.plots.theme import BLUE, INK, MUTED, finish, panel_titles

Rows = Sequence[Mapping[str, Any]]
FULL, REUSE = "full, 10 passages", "independent blocks, 10 passages"
GOAL, UNDER = (
    (0.80, 0.90),
    0.15,
)  # of full attention, and how far reuse should lie under it, so that methods can be ranked
MISSING = "No model was trained and scored on the harder lab yet: bash data/benchmarks/lab_hard.sh"


def by_setting() -> go.Figure | None:
    """Draw exact match under every setting, a panel a size; None where nothing was scored."""
    rows = [row for row in kept.scores() if row["kind"] == "all"]
    if not rows:
        return None
    names = list(dict.fromkeys(row["setting"] for row in rows))
    return _panels(rows, "setting", names, "Settings of the harder lab over training seeds", said(rows))


def by_preparation() -> go.Figure | None:
    """Draw exact match of reuse behind every preparation, a panel a size; None where nothing was measured."""
    rows = [{**row, "name": named(row)} for row in kept.preparations() if row["kind"] == "all"]
    if not rows:
        return None
    names = sorted({row["name"] for row in rows})
    return _panels(
        rows, "name", names, "Preparations on the harder lab over training seeds", said_of_preparations(rows)
    )


def named(row: Mapping[str, Any]) -> str:
    """Name a trial: "after_system, titles kept"."""
    return f"{row['prepare']}, titles {row['titles']}"


def _panels(rows: Rows, key: str, names: Sequence[str], title: str, notice: str) -> go.Figure:
    """Draw the mean with its interval, and every seed, of each name; a panel a size."""
    sizes = kept.sizes(rows)
    fig = make_subplots(1, len(sizes), shared_yaxes=True, horizontal_spacing=0.06, subplot_titles=sizes)
    for col, size in enumerate(sizes, 1):
        own = [row for row in rows if row["size"] == size]
        means = {name: _mean(own, **{key: name}) for name in names}
        there = {name: mean for name, mean in means.items() if mean}
        middle, low, high = ([getattr(mean, end) for mean in there.values()] for end in ("mean", "low", "high"))
        fig.add_scatter(
            x=[row["em"] for row in own],
            y=[row[key] for row in own],
            mode="markers",
            marker={"color": MUTED, "symbol": "circle-open", "size": 7},
            name="a training seed",
            showlegend=col == 1,
            customdata=[[row["seed"], row["n"]] for row in own],
            hovertemplate="%{y}: %{x:.1%}<br>seed %{customdata[0]}, n = %{customdata[1]:,}<extra></extra>",
            row=1,
            col=col,
        )
        fig.add_scatter(
            x=middle,
            y=list(there),
            error_x={**interval(middle, low, high), "color": INK},
            mode="markers",
            marker={"color": BLUE, "size": 10},
            name="mean over seeds",
            showlegend=col == 1,
            customdata=[[mean.seeds, mean.low, mean.high] for mean in there.values() if mean],
            hovertemplate="%{y}: %{x:.1%}<br>95% interval %{customdata[1]:.1%} to %{customdata[2]:.1%}, "
            "%{customdata[0]} seeds<extra></extra>",
            row=1,
            col=col,
        )
    fig.update_xaxes(range=[-0.03, 1.03], tickformat=".0%", title_text="exact match")
    fig.update_yaxes(categoryorder="array", categoryarray=list(names)[::-1])
    panel_titles(fig)
    seeds = joined([f"{size} {len({row['seed'] for row in rows if row['size'] == size})}" for size in sizes])
    return finish(
        fig,
        title=title,
        notice=notice,
        caption=f"Training seeds: {seeds}; n = {min(row['n'] for row in rows):,} questions each, on worlds that no "
        "training saw. Intervals of 95%: seeds and answers resampled. data/benchmarks/lab_hard.sh.",
        height=28 * len(names) + 20,
        above=60,
        left=40 + 7 * max(map(len, names)),
        legend=26,
    )


def _mean(rows: Rows, **chosen: Any) -> OverSeeds | None:
    shares, n = kept.shares(rows, **chosen)
    return over_seeds(shares, n) if shares else None


def gap(rows: Rows, size: str, key: str, one: str, other: str) -> OverSeeds | None:
    """Return how far one setting lies above another over the seeds that have both; None where there are none."""
    own = [row for row in rows if row["size"] == size]
    both = {row["seed"] for row in own if row[key] == one} & {row["seed"] for row in own if row[key] == other}
    own = [row for row in own if row["seed"] in both]
    (ours, n), (theirs, _) = (kept.shares(own, **{key: name}) for name in (one, other))
    return gap_over_seeds(ours, theirs, n) if ours else None


def said(rows: Rows) -> str:
    """Say for every size where full attention and reuse stand, and whether the lab can rank methods so."""
    texts = []
    for size in kept.sizes(rows):
        full = _mean([row for row in rows if row["size"] == size], setting=FULL)
        under = gap(rows, size, "setting", REUSE, FULL)
        if not full or not under:
            texts.append(f"{size}: not scored in full.")
            continue
        fits = GOAL[0] <= full.mean <= GOAL[1] and under.mean <= -UNDER
        word = "so methods can be ranked" if fits else "outside the range in which methods are ranked best"
        texts.append(
            f"{size}: full attention {full.mean:.0%} [{full.low:.0%}, {full.high:.0%}], independent blocks "
            f"{_points(under)}: {word}."
        )
    return " ".join(texts)


def _points(found: OverSeeds) -> str:
    return f"{100 * found.mean:+z.1f} points [{100 * found.low:+z.1f}, {100 * found.high:+z.1f}] to it"


def said_of_preparations(rows: Rows) -> str:
    """Say what the true document before a passage gives over the system prompt alone, by size and titles."""
    texts = []
    for size in kept.sizes(rows):
        for titles in ("kept", "continued"):
            names = (f"{prepare}, titles {titles}" for prepare in ("behind_document", "after_system"))
            found = gap(rows, size, "name", *names)
            if found:
                sign = "lifts" if found.low > 0 else "lowers" if found.high < 0 else "leaves open whether it lifts"
                ends = f"[{100 * found.low:+z.1f}, {100 * found.high:+z.1f}]"
                texts.append(
                    f"{size}, titles {titles}: a passage's own document {sign} reuse, {100 * found.mean:+z.1f} {ends}."
                )
    return " ".join(texts) or "Documents and system prompt were not both measured."
