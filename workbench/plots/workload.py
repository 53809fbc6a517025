"""Simulated requests: Alternative Path beside prefix caches, and where block reuse overtakes them."""

from collections.abc import Mapping
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from workbench.experiments import paper_workload
from workbench.experiments.break_even import PREFIX, RECOMPUTED, REORDERED, REUSE, chosen, crossing, curve
from workbench.experiments.paper_workload import PATH, UNBOUNDED, summary, variations
from workbench.experiments.ttft_model import TtftModel
from workbench.metrics.published_numbers import FUSION_RAG
from workbench.plots.dots import Column, dots
from workbench.plots.findings import joined
from workbench.plots.lines import Panel, Series, line_chart
from workbench.plots.styles import Look
from workbench.plots.table import table
from workbench.plots.theme import BLUE, GREEN, MUTED, ORANGE, RED, log_ticks

SIMULATED = Look(BLUE, name="simulated here (interval over draws)")
PRINTED = Look(RED, "diamond", name="printed by FusionRAG (section 5.3.3)")
PUBLISHED = {
    "storage_saved": FUSION_RAG["storage_saved"],
    "redundant_removed": FUSION_RAG["redundant_removed"],
    "hit_rate": FUSION_RAG["hit_rate"],
}
TITLES = {
    "storage_saved": "storage saved",
    "redundant_removed": "recomputation removed",
    "computation_saved": "computation saved",
    "hit_rate": "look-ups that hit",
}
LOOKS = {
    PREFIX: Look(MUTED, "square", name=PREFIX),
    REORDERED: Look(ORANGE, "diamond", name=REORDERED),
    REUSE: Look(BLUE, name=REUSE),
    RECOMPUTED: Look(GREEN, "triangle-up", name=RECOMPUTED),
}
Kept = Mapping[str, Any]  # workload.json


def default_rows(kept: Kept) -> list[dict[str, Any]]:
    """Return the rows of the default workload."""
    return variations(kept["rows"], kept["default"])["", ""]


def caches(kept: Kept) -> go.Figure:
    """Draw what every cache saves and finds on the paper's workload, the printed numbers beside."""
    found = summary(default_rows(kept))
    columns = []
    for measure, title in TITLES.items():
        rows = [
            {"name": name, "series": "here", "mean": mean, "low": low, "high": high}
            for name, measures in found.items()
            for mean, low, high in [measures[measure]]
        ]
        if measure in PUBLISHED:
            ends = dict.fromkeys(("mean", "low", "high"), PUBLISHED[measure])
            rows.append({"name": PATH, "series": "printed", **ends})
        columns.append(Column(title, "share", rows, percent=True))
    return dots(
        columns,
        {"here": SIMULATED, "printed": PRINTED},
        spread=True,
        title="Alternative Path on FusionRAG's workload",
        notice=f"{_path_said(found)} {_within(kept)}",
        caption=f"{_workload_said(kept)} Shares are of what an unbounded prefix cache keeps, computes again, and "
        "computes at all. The knowledge base is encoded beforehand, for every cache. The paper prints no number of "
        "chunks a query, no size of its pools and no popularity: these are ours. No model runs.",
    )


def _path_said(found: Mapping[str, Mapping[str, tuple[float, float, float]]]) -> str:
    path, prefix = found[PATH], found[UNBOUNDED]
    said = [f"{path[name][0]:.1%} {TITLES[name]} (printed {PUBLISHED[name]:.1%})" for name in PUBLISHED]
    reordered = found[paper_workload.REORDERED]["hit_rate"][0]
    return (
        f"Alternative Path: {joined(said)}. A prefix cache finds {prefix['hit_rate'][0]:.1%}, with passages reordered "
        f"{reordered:.1%}."
    )


def _within(kept: Kept) -> str:
    """Say which printed numbers lie within what the settings give."""
    measured = [summary(rows)[PATH] for rows in variations(kept["rows"], kept["default"]).values()]
    parts = []
    for name, printed in PUBLISHED.items():
        low, high = (end(one[name][0] for one in measured) for end in (min, max))
        parts.append(f"{TITLES[name]} {low:.0%} to {high:.0%} ({_holds(low, printed, high)})")
    return f"Over {len(measured)} settings: {'; '.join(parts)}."


def _holds(low: float, printed: float, high: float) -> str:
    """Say whether a range holds a number that is printed with three digits."""
    return "which holds it" if round(low, 3) <= printed <= round(high, 3) else "which does not hold it"


def _workload_said(kept: Kept) -> str:
    drawn = kept["default"]
    fewest, most = drawn["passages"]
    base, shared = (f"{share:.0%}" for share in drawn["shares"])
    return (
        f"{drawn['queries']:,} queries of {fewest} to {most} chunks, {base} of {drawn['knowledge']:,} in the knowledge "
        f"base, {shared} of {drawn['uploads']:,} shared uploads, the rest once; Zipf exponent {drawn['zipf']:g}; "
        f"{kept['seeds']} draws, 95% intervals."
    )


def settings_table(kept: Kept) -> go.Figure:
    """List what Alternative Path saves and finds when one field of the workload changes."""
    rows, groups, last = list[list[str]](), list[int](), None
    for (field, value), of in variations(kept["rows"], kept["default"]).items():
        if field != last:
            groups.append(len(rows))
            rows.append([field or "as above", *[""] * (len(TITLES) + 2)])
            last = field
        found = summary(of)
        numbers = [f"{found[PATH][name][0]:.1%}" for name in TITLES]
        others = [f"{found[name]['hit_rate'][0]:.1%}" for name in (UNBOUNDED, paper_workload.REORDERED)]
        rows.append([f"  {value or 'all fields'}", *numbers, *others])
    head = ["what changes", *TITLES.values(), "hits of a prefix cache", "reordered"]
    return table(
        head,
        rows,
        groups=groups,
        title="What the paper leaves open",
        notice=_within(kept),
        caption=f"Means of {kept['seeds']} draws. Every row changes one field of the workload above.",
    )


def break_even_lines(
    frame: pd.DataFrame, model: TtftModel, *, order: str = "relevance", pool: int = 1_000, question: int = 50
) -> go.Figure:
    """Draw hits and times to the first token against popularity, and times against repeated requests."""
    here = chosen(frame, order=order, pool=pool, question=question)
    popular, zipf = chosen(here, repeats=0.0), 1.0
    repeated = chosen(here, zipf=zipf)
    if len(set(repeated.repeats)) < 2:  # of the default order and pool alone
        repeated = chosen(frame, order="relevance", pool=1_000, question=question, zipf=zipf)
    times = {"title_text": "milliseconds", "type": "log", **log_ticks(popular.ttft_ms)}
    panels = [
        _panel("passages found", popular, "zipf", "hit_rate", {"tickformat": ".0%", "range": [0, 1.02]}),
        _panel("time to the first token", popular, "zipf", "ttft_ms", times),
        _panel(f"the same, of repeated requests (Zipf {zipf:g})", repeated, "repeats", "ttft_ms", times),
    ]
    setting = popular.iloc[0]
    return line_chart(
        panels,
        height=320,
        spacing=0.08,
        title="Where block reuse overtakes prefix caching",
        notice=f"{crossing_said(popular)} {repeats_said(repeated)}",
        caption=f"{setting.passages} passages of {setting.block} tokens from {pool:,}, order: {order}, question of "
        f"{question} tokens, {setting.budget:,} passages in every cache, second half of {setting.requests} requests; "
        f"bands: 95% over {popular.seed.nunique()} draws. {_model_said(model)}",
    )


def _panel(name: str, frame: pd.DataFrame, by: str, value: str, y: Mapping[str, Any]) -> Panel:
    records = curve(frame, by, value)
    lines = []
    for method, look in LOOKS.items():
        taken = [record for record in records if record["name"] == method]
        at, mean, low, high = ([record[key] for record in taken] for key in ("at", "mean", "low", "high"))
        form = ".1%" if value == "hit_rate" else ",.1f"
        hover = f"%{{x}}: %{{y:{form}}}"
        if method == RECOMPUTED and value == "hit_rate":
            continue  # it finds what block reuse finds
        lines.append(Series(look.name, at, mean, low, high, hover, look=look))
    title = "popularity (Zipf exponent)" if by == "zipf" else "share of requests that repeat an earlier one"
    return Panel(name, lines, {"title_text": title, **({"tickformat": ".0%"} if by == "repeats" else {})}, y)


def crossing_said(frame: pd.DataFrame) -> str:
    """Say up to which popularity block reuse takes less time than reordered prefix caching."""
    parts = []
    for name in (REUSE, RECOMPUTED):
        at = crossing(frame, REORDERED, name)
        end = f"at every exponent up to {frame.zipf.max():g}" if at is None else f"up to exponent {at:.1f}"
        parts.append(f"{name} {'at no exponent' if at == 0 else end}")
    return f"The first token comes sooner than with reordered prefix caching by {joined(parts)}."


def repeats_said(frame: pd.DataFrame) -> str:
    """Say from which share of repeated requests on a prefix cache takes no longer than reuse with recomputation."""
    at = crossing(frame, PREFIX, RECOMPUTED, by="repeats")
    if at is None:
        return f"No share of repeated requests brings a plain prefix cache level with {RECOMPUTED}."
    return f"Where {at:.0%} of the requests repeat an earlier one, a plain prefix cache is level with {RECOMPUTED}."


def _model_said(model: TtftModel) -> str:
    return (
        f"Times: {model.start:.1f} ms, {1e3 * model.row:.1f} µs a row and {1e6 * model.pair:.2f} ns a pair, fitted "
        f"to {len(model.points)} measured times of one engine on {model.gpu} (Llama-3.1-8B shape; off by at most "
        f"{model.worst:.0%}), all KV on the GPU; choosing rows is charged as one more pass of the question. Prefix "
        "caching computes what full attention computes, block reuse does not: quality is not in this figure."
    )


def crossings(frame: pd.DataFrame) -> go.Figure:
    """List from which popularity on prefix caching takes no longer than block reuse, by order, pool and question."""
    first, questions = chosen(frame, repeats=0.0), list(dict.fromkeys(frame.question))
    cases = [(PREFIX, order) for order in dict.fromkeys(first.order)] + [(REORDERED, "relevance")]
    rows, groups, found = list[list[str]](), list[int](), list[float | None]()
    for prefix, order in cases:
        groups.append(len(rows))
        rows.append([prefix if prefix == REORDERED else f"{prefix}, order: {order}", *[""] * (2 * len(questions))])
        for pool in sorted(set(first.pool)):
            settings = [chosen(first, order=order, pool=int(pool), question=question) for question in questions]
            ends = [crossing(setting, prefix, name) for name in (REUSE, RECOMPUTED) for setting in settings]
            found += ends
            rows.append([f"  {pool:,} passages", *("–" if at is None else f"{at:.1f}" for at in ends)])
    known = [at for at in found if at is not None]
    between = f", between {min(known):.1f} and {max(known):.1f}" if known else ""
    return table(
        ["pool", *(f"{name}, {question:,}" for name in ("reuse", "15%") for question in questions)],
        rows,
        groups=groups,
        widths=[2.6, *[1] * (2 * len(questions))],
        title="The break-even: popularity from which prefix caching takes no longer",
        notice=f"{len(known)} of {len(found)} settings have one up to Zipf exponent {frame.zipf.max():g}{between}; a "
        "dash: none. Reordered, the order in which passages were retrieved does not matter.",
        caption="Zipf exponents, against block reuse with nothing and with 15% recomputed; columns by tokens of the "
        f"question. Mean time to the first token over "
        f"{frame.seed.nunique()} draws, between two exponents by linear interpolation.",
    )
