"""Differences of runs from a base run: one panel per score, one row per run, with intervals; and in sentences."""

from collections.abc import Iterable, Mapping, Sequence
from math import ceil
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from workbench.experiments.trials.run_differences import COSTS, RunComparison, RunDifference
from workbench.metrics import latency
from workbench.metrics.measures import MEASURES, Measure
from workbench.metrics.paired import count_differing, too_few
from workbench.plots.marks.elements import interval
from workbench.plots.marks.styles import SYMBOLS
from workbench.plots.marks.theme import BLOCKS, FAINT, INK, Texts, escape_text, finish, panel_titles
from workbench.plots.reports.findings import times

COLUMNS, ROWS, NAME = 3, 40, 44  # panels a line; runs that are drawn; letters of a name
FOREMOST = ("em", "f1", "contains", "kl", "nll")  # a run's sentence names one of these
RULE = "the largest significant loss of exact match, F1 and contains, else of KL, else of gold nll; else a gain"
CHEAPER = {"ttft_p50": ("faster", "slower"), "rows_computed": ("fewer", "as many")}


def differences(found: RunComparison, titled: bool = True) -> go.Figure:
    """Draw the differences of all runs to the base, at most 40 runs; rings are differences without an interval.

    Unless `titled`, the page states the finding above the figure.
    """
    scores = list(dict.fromkeys(each.score for each in found.differences))[:12]
    runs = list(dict.fromkeys(each.run for each in found.differences))[:ROWS]
    lines, across = ceil(len(scores) / COLUMNS), min(COLUMNS, len(scores))
    row, gap = max(60, 26 * len(runs)), 84  # px
    height = lines * row + (lines - 1) * gap
    heads = [measure_of(score).label[:28] for score in scores]
    spacing = {"horizontal_spacing": 0.03, "vertical_spacing": gap / height if lines > 1 else 0}
    fig = make_subplots(lines, across, shared_yaxes=True, subplot_titles=heads, **spacing)
    for number, score in enumerate(scores):
        place = {"row": number // COLUMNS + 1, "col": number % COLUMNS + 1}
        for at, run in enumerate(runs):
            for each in found.differences:
                if (each.run, each.score) == (run, score):
                    fig.add_trace(_mark(each, at), **place)
        share = measure_of(score).percent
        fig.update_xaxes(title_text="points" if share else "difference", nticks=5, **place)
        fig.add_vline(0, line={"color": INK, "width": 1, "dash": "dot"}, **place)
    names = [escape_text(run if len(run) <= NAME else run[: NAME - 1] + "…") for run in runs]
    ticks = {"tickvals": list(range(len(runs))), "ticktext": names, "ticks": ""}
    fig.update_yaxes(**ticks, range=[len(runs) - 0.4, -0.6], gridcolor=FAINT)
    panel_titles(fig, 12)
    n = sorted({each.n for each in found.differences if each.n})
    asked = f"n = {' to '.join(f'{count:,}' for count in dict.fromkeys((n[0], n[-1])))} questions" if n else ""
    caption = (
        f"Beside {found.base_name}. 95% paired bootstrap intervals{', ' + asked if asked else ''}; rings: not paired."
    )
    left = 30 + round(6.2 * max(len(name) for name in names))
    texts: Texts = {"title": "Comparison of runs", "notice": " ".join(run_sentences(found)), "caption": caption}
    if not titled:
        texts = {"title": "Differences", "caption": caption}
    return finish(fig, height=height, above=40, below=56, left=min(left, 330), **texts)


def _mark(each: RunDifference, at: int) -> go.Scatter:
    scale = 100 if measure_of(each.score).percent else 1
    value, colour = each.difference * scale, BLOCKS[at % len(BLOCKS)]
    ends: dict[str, Any] = {}
    symbol = SYMBOLS[at % len(SYMBOLS)]
    if each.low is None or each.high is None:
        about, symbol = f"not paired: {escape_text(each.why)}", "circle-open"
    else:
        ends = {"error_x": {**interval([value], [each.low * scale], [each.high * scale]), "color": colour}}
        about = f"95% interval {each.low * scale:+.3g} to {each.high * scale:+.3g}, n = {each.n:,}"
    return go.Scatter(
        x=[value],
        y=[at],
        mode="markers",
        marker={"color": colour, "symbol": symbol, "size": 9},
        customdata=[[escape_text(each.run), about, f"{each.one:.4g}", f"{each.other:.4g}"]],
        hovertemplate="%{customdata[0]}<br>%{x:+.3g} (%{customdata[2]}, baseline %{customdata[3]})<br>%{customdata[1]}"
        "<extra></extra>",
        showlegend=False,
        **ends,
    )


def run_sentences(found: RunComparison) -> list[str]:
    """Return one sentence per run, for at most three: its most telling score and its costs."""
    costs = {row["run"]: row for row in found.costs()}
    runs = found.others
    parts = [_of_run([d for d in found.differences if d.run == run.name], costs[run.name]) for run in runs[:3]]
    rest = len(runs) - 3
    more = [f"{rest} more run{'s are' if rest > 1 else ' is'} listed in the table."] if rest > 0 else []
    about = f", {found.model_and_data}" if found.model_and_data else ""
    return [f"Compared with {found.base_name}{about}:", *parts, *more]


def _of_run(found: Sequence[RunDifference], costs: Mapping[str, Any]) -> str:
    by_score = {each.score: each for each in found}
    words = [sentence(most_telling([by_score[name] for name in FOREMOST if name in by_score] or found))]
    computed = costs["rows_computed_ratio"]
    for cost, (less, more) in CHEAPER.items():
        ratio = costs[f"{cost}_ratio"]
        if cost == "ttft_p50" and computed is not None and abs(computed - 1) <= latency.SAME_WORK:
            continue  # as many tokens computed: the difference is timing noise
        if cost == "ttft_p50" and (costs["ttft_n"] or latency.CLAIMED) < latency.CLAIMED:
            continue  # too few requests were timed to claim anything
        if ratio and abs(ratio - 1) > 0.005:
            what = "the first token arrives" if cost == "ttft_p50" else "it computes"
            unit = "" if cost == "ttft_p50" else " tokens"
            if cost == "ttft_p50" and costs["ttft_low"] is not None:
                low, high = costs["ttft_low"], costs["ttft_high"]
                if low <= 1 <= high:
                    continue  # the intervals of the two sides overlap
                low, high = (1 / high, 1 / low) if high < 1 else (low, high)  # as the ratio before it: at least 1
                unit = f" ({low:.2f} to {high:.2f} times, {costs['ttft_n']:.0f} requests)"
            words.append(f"{what} {times(1 / ratio, less, more)}{unit}")
    return f"{found[0].run}: {'; '.join(words)}."


def most_telling(found: Sequence[RunDifference]) -> RunDifference:
    """Return the largest significant loss in points, else the first other one; without any, such a gain.

    Without either, the first that differs, else the first.
    """
    significant = [each for each in found if _significant(each)]
    losses = [each for each in significant if not _better(each)]
    if telling := losses or significant:
        shares = [each for each in telling if measure_of(each.score).percent]
        return max(shares, key=lambda each: abs(each.difference)) if shares else telling[0]
    return next(iter([each for each in found if not _rounds_to_0(each)] or found))


def _significant(each: RunDifference) -> bool:
    """Return whether the interval excludes 0, enough questions differ, and the difference does not round to 0."""
    known = each.low is not None and each.high is not None and not each.low <= 0 <= each.high
    return known and not too_few(each.moved) and not _rounds_to_0(each)


def _rounds_to_0(each: RunDifference) -> bool:
    return not float(measure_of(each.score).say_gap(each.difference))


def _better(each: RunDifference) -> bool:
    return (each.difference > 0) == (measure_of(each.score).better != "lower")


def sentence(each: RunDifference) -> str:
    """Describe one difference: its direction, and whether its interval includes 0."""
    measure = measure_of(each.score)
    words, gap = measure.words.split(", nats")[0], f"{measure.say_gap(each.difference)}{measure.unit}"
    if each.low is None or each.high is None:
        return f"{words} {gap}, not paired ({each.why})"
    if not each.moved:
        return f"{words} the same on all {each.n:,} questions"
    if too_few(each.moved):
        return f"{words} {gap}: {each.moved} of {each.n:,} questions differ: too few to tell"
    ends = f"({measure.ends(each.low, each.high, gap=True)})"
    if _rounds_to_0(each):
        return f"{words} {gap} {ends}: no difference at this precision"
    if each.low <= 0 <= each.high:
        return f"{words} {gap} {ends}: no significant difference"
    way = "higher" if each.difference > 0 else "lower"
    judged = f", which is {'better' if _better(each) else 'worse'}" if measure.better else ""
    return f"{words} {gap.lstrip('+-')} {way} {ends}{judged}"


def measure_of(score: str) -> Measure:
    """Return a known measure, or one of a notebook's own number."""
    words = COSTS.get(score, score)
    return MEASURES.get(score) or Measure(score, words, words, score, better="", form=".4g")


def difference_rows(found: RunComparison) -> Iterable[tuple[str, ...]]:
    """Yield (run, score, its value, the base's, difference, 95% interval, n) as texts, in points for shares."""
    for each in found.differences:
        measure = measure_of(each.score)
        gap = f"{measure.say_gap(each.difference)}{measure.unit}"
        values = measure.format_value(each.one), measure.format_value(each.other), gap, ends(each)
        yield each.run, measure.label, *values, f"{each.n:,}"


def ends(each: RunDifference) -> str:
    """Return the interval of a difference, or why it has none that tells."""
    if each.low is None or each.high is None:
        return "not paired"
    if too_few(each.moved):
        return count_differing(each.moved, each.n)
    return measure_of(each.score).ends(each.low, each.high, gap=True)
