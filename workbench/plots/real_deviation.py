"""Where cached keys and values deviate and which tokens are chosen, on real text beside the lab's."""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from workbench.experiments.deviation_results import Deviations, by_name, kept
from workbench.metrics.published_numbers import FUSION_RAG
from workbench.plots.dots import Column, dots
from workbench.plots.findings import joined, judged
from workbench.plots.styles import SELECTORS, Look
from workbench.plots.theme import BLUE, GREEN, ORANGE

OUTSIDE, CHANGE = "left_outside_15_percent", "change_by_preparation"
HEADS, LATE = "first_tenth_over_mean", "later_half_over_mean"
CHOOSERS = {"CacheBlend": "kv_deviation", "query-guided": "query_guided", "answer-guided": "answer_guided"}
MODELS = {"lab": Look(ORANGE, "circle", name="lab facts"), "real": Look(BLUE, "square", name="real text")}
PAIRS = {
    "CacheBlend and query-guided": Look(BLUE, "square", name="CacheBlend and question-guided"),
    "CacheBlend and answer-guided": Look(GREEN, "diamond", name="CacheBlend and answer-guided"),
    "query-guided and answer-guided": Look(ORANGE, "circle", name="question-guided and answer-guided"),
}


def deviation_beside_lab(measured: Sequence[Deviations] | None = None) -> go.Figure | None:
    """Draw how concentrated deviation is, where it lies and what preparation changes; None without real text."""
    files = kept() if measured is None else measured
    if not any(each.is_real for each in files):
        return None
    left = FUSION_RAG["outside_15_percent"]
    columns = [
        Column("left outside the worst 15%", "share of the deviation", _rows(files, OUTSIDE), percent=True, level=left),
        Column("first tenth of a chunk", "over its mean", _rows(files, HEADS), level=1),
        Column("later half of the chunks", "over the mean", _rows(files, LATE), level=1),
        Column(
            "by preparation",
            "change of the deviation",
            _rows(files, CHANGE),
            percent=True,
            level=FUSION_RAG["kv_change"],
        ),
    ]
    fig = dots(
        [column for column in columns if column.rows],
        MODELS,
        title="Deviation of cached blocks, real text beside the lab (FusionRAG, figures 3 and 7b)",
        notice=said_of_deviation(files),
        caption=f"{about(files)} Squared deviation of the second layer, blocks cached behind the system prompt; "
        "preparation: behind 10 neighbours. Dotted: printed shares, and 1, as much as elsewhere.",
    )
    return fig.update_xaxes(nticks=4, tickangle=0)


def choices_beside_lab(measured: Sequence[Deviations] | None = None) -> go.Figure | None:
    """Draw where selectors choose; None without real text."""
    files = kept() if measured is None else measured
    if not any(each.is_real for each in files):
        return None
    looks = {name: SELECTORS.of(spec) for name, spec in CHOOSERS.items()}
    tenth = [row for name in looks for row in _rows(files, f"{name}: first tenth", name)]
    late = [row for name in looks for row in _rows(files, f"{name}: later half", name)]
    return dots(
        [
            Column("first tenth of a chunk", "share of the chosen tokens", tenth, percent=True, level=0.1),
            Column("later half of the chunks", "chosen, over the mean", late, level=1),
        ],
        looks,
        spread=True,
        title="Where selectors choose, real text beside the lab (FusionRAG, figure 8)",
        notice=said_of_choices(files),
        caption=f"{about(files)} 15% of the tokens chosen. Dotted: a choice without a preference.",
    )


def agreement_beside_lab(measured: Sequence[Deviations] | None = None) -> go.Figure | None:
    """Draw how far selectors agree; None where it was not measured on real text."""
    files = kept() if measured is None else measured
    rows = [row for pair in PAIRS for row in _rows(files, f"{pair}: agreement", pair)]
    if not any(row["real"] for row in rows):
        return None
    ratio = FUSION_RAG["ratio"]
    by_chance = ratio / (2 - ratio)
    return dots(
        [Column("agreement", "chosen by both, of what either chooses", rows, percent=True, level=by_chance)],
        PAIRS,
        spread=True,
        title="How far selectors agree",
        notice=said_of_agreement(rows, by_chance),
        caption=f"{about(files)} 15% of the tokens chosen; Jaccard. Dotted: choices drawn at random.",
    )


def _rows(files: Sequence[Deviations], name: str, series: str = "") -> list[dict[str, Any]]:
    """Return a number of every file as rows of `dots`; without a series real text and lab are told apart."""
    return [
        {
            "name": each.where,
            "series": series or ("real" if each.is_real else "lab"),
            "real": each.is_real,
            "mean": number["value"],
            "low": number["low"],
            "high": number["high"],
        }
        for each, number in by_name(files, name)
    ]


def about(files: Sequence[Deviations]) -> str:
    """Say of how many questions each was measured."""
    parts = [f"{each.where} {each.n:,} ({each.about['device']})" for each in files]
    passages = joined(sorted({str(each.about["passages"]) for each in files}))
    return f"Questions: {joined(parts)}; {passages} passages each. Bars: 95% over questions."


def _holds(rows: Sequence[Mapping[str, Any]], bar: float, above: bool = True) -> bool | None:
    """Return whether real text lies on that side of a bar everywhere.

    False where it lies on the other, None left open.
    """
    ends = [(row["low"], row["high"]) if above else (-row["high"], -row["low"]) for row in rows if row["real"]]
    bar = bar if above else -bar
    if any(high < bar for _, high in ends):
        return False
    return True if ends and all(low > bar for low, _ in ends) else None


def _listed(rows: Sequence[Mapping[str, Any]], form: str) -> str:
    return joined([f"{row['mean']:{form}} ({row['name']})" for row in rows])


def said_of_deviation(files: Sequence[Deviations]) -> str:
    """Say what figures 3 and 7b claim and what is measured, on real text and on the lab's."""
    left, printed = FUSION_RAG["outside_15_percent"], FUSION_RAG["kv_change"]
    outside, heads, late, change = (_rows(files, name) for name in (OUTSIDE, HEADS, LATE, CHANGE))
    places = [_holds(rows, 1.0) for rows in (heads, late) if rows]
    at_heads = False if False in places else True if places and all(places) else None
    words = [
        f"The 15% of tokens that deviate most leave {_listed(outside, '.0%')}.",
        judged("FusionRAG", f"over {left:.0%} is left (figure 3a)", _holds(outside, left)),
        judged("FusionRAG", "deviation peaks at the start of chunks and in later ones (figure 3b)", at_heads),
        f"Preparation changes it by {_listed(change, '+.0%')}.",
        judged("FusionRAG", f"it changes by {printed:+.0%} (figure 7b)", _holds(change, printed / 2, above=False)),
        differing(files),
    ]
    return " ".join(word for word in words if word)


def differing(files: Sequence[Deviations]) -> str:
    """Name what the lab model shows the other way round than every real text; "" where nothing is."""
    claims = {"the heads of chunks": (HEADS, 1.0), "later chunks": (LATE, 1.0), "preparation": (CHANGE, 0.0)}
    turned = []
    for words, (name, bar) in claims.items():
        sides = {
            is_real: {row["mean"] > bar for row in _rows(files, name) if row["real"] == is_real}
            for is_real in (True, False)
        }
        if len(sides[True]) == len(sides[False]) == 1 and sides[True] != sides[False]:
            turned.append(words)
    return f"Lab and real text point opposite ways on {joined(turned)}." if turned else ""


def said_of_choices(files: Sequence[Deviations]) -> str:
    """Say what figure 8 claims of both selectors, and whether real text has it."""
    names = list(CHOOSERS)[:2]
    (blend, guided), (late, guided_late) = (
        [_rows(files, f"{name}: {what}") for name in names] for what in ("first tenth", "later half")
    )
    words = [f"CacheBlend takes {_listed(blend, '.0%')} from the first tenth of a chunk."]
    places = [_holds(blend, 0.1), _holds(late, 1.0)]
    at_heads = False if False in places else True if all(places) else None
    words.append(judged("FusionRAG", "it chooses heads of chunks and later chunks (figure 8)", at_heads))
    parts = [_counted(blend, guided, "the first tenth"), _counted(late, guided_late, "the later half of chunks")]
    words.append(f"On real text the question-guided choice takes {joined(parts)}.")
    evener = [_less(blend, guided), _less(late, guided_late)]
    words.append(
        judged(
            "FusionRAG",
            "the question-guided choice is more even",
            False if False in evener else True if all(evener) else None,
        )
    )
    return " ".join(words)


def _counted(blend: Sequence[Mapping[str, Any]], guided: Sequence[Mapping[str, Any]], what: str) -> str:
    """Say on how many real data sets the second selector takes less than the first, and on how many more."""
    pairs = [(one, other) for one, other in zip(blend, guided, strict=True) if one["real"]]
    less = sum(other["high"] < one["low"] for one, other in pairs)
    more = sum(other["low"] > one["high"] for one, other in pairs)
    return f"less than CacheBlend from {what} on {less} of {len(pairs)} data sets and more on {more}"


def _less(blend: Sequence[Mapping[str, Any]], guided: Sequence[Mapping[str, Any]]) -> bool | None:
    """Return whether the second selector has less than the first on all real text; None where intervals meet."""
    pairs = [(one, other) for one, other in zip(blend, guided, strict=True) if one["real"]]
    if any(other["low"] > one["high"] for one, other in pairs):
        return False
    return True if pairs and all(other["high"] < one["low"] for one, other in pairs) else None


def said_of_agreement(rows: Sequence[Mapping[str, Any]], by_chance: float) -> str:
    """Say which selectors agree most and least on real text, beside chance."""
    values = {pair: [float(row["mean"]) for row in rows if row["series"] == pair and row["real"]] for pair in PAIRS}
    means = {pair: sum(each) / len(each) for pair, each in values.items() if each}
    most, least = max(means, key=means.__getitem__), min(means, key=means.__getitem__)
    words = f"On real text {PAIRS[most].name} agree most, {means[most]:.0%}"
    words += f", {PAIRS[least].name} least, {means[least]:.0%}" if least != most else ""
    under = [PAIRS[pair].name for pair, value in means.items() if value <= by_chance]
    return f"{words}; {by_chance:.0%} is chance." + (f" No more than chance: {joined(under)}." if under else "")
