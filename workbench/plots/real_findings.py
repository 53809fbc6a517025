"""What the results of a real pretrained model say, in sentences made from the numbers.

Scores are KL from full attention and the likelihood of the gold answer lost ("nll_extra"), in nats a token; lower is
better. Differences are taken question by question.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from workbench.methods import registry
from workbench.metrics.paired import Difference
from workbench.plots.measures import MEASURES
from workbench.plots.real_results import RATIO, Real
from workbench.plots.styles import SELECTORS

SYSTEM = "after_system"
FULL, REUSE, CACHEBLEND, GUIDED = "full", "Full Reuse", "kv_deviation", "query_guided"
SAID = {"kl": "KL", "nll_extra": "likelihood lost"}
Records = list[dict[str, Any]]


def neighbours_of(prepare: str) -> int | None:
    """Return how many neighbours a preparation has: 0 behind the system prompt alone, None for another one."""
    name, options = registry.parse(prepare) if "embedder" not in prepare else ("", {})
    return {SYSTEM: 0, "with_neighbours": int(options.get("n", 10))}.get(name)


def name_of(row: Mapping[str, Any]) -> str:
    """Return the name of a method that people read, from a row of the table."""
    if row["mode"] == "full":
        return "full attention" if row["sparse"] == "none" else row["sparse"]
    prepare, select = row["prepare"], row["select"]
    if row["positions"] == "naive":
        return "naive positions (PromptCache)"
    if prepare == SYSTEM:
        prepared = "Full Reuse"
    elif prepare == "independent":
        prepared = "independent blocks"
    else:
        options = registry.parse(prepare)[1]
        n = options.get("n", 10)
        prepared = f"{n} neighbour{'s' if n > 1 else ''}" + (" by MiniLM" if "embedder" in options else "")
    if select == "none":
        return prepared
    at = "" if row["ratio"] in (None, RATIO) or np.isnan(row["ratio"]) else f" at {row['ratio']:.0%}"
    return f"{prepared} + {SELECTORS.name_of(select)}{at}"


def said(value: float) -> str:
    """Write a loss in nats: ".044", "-.057", "1.67"."""
    text = f"{value:.3f}" if abs(value) < 1 else f"{value:.2f}"
    return text.replace("0.", ".", 1) if abs(value) < 1 else text


def spread(gap: Difference) -> str:
    """Write a difference with its interval: "+.012 [.003, .021]"."""
    sign = "+" if gap.mean >= 0 else ""
    return f"{sign}{said(gap.mean)} [{said(gap.low)}, {said(gap.high)}]"


def verdict(gap: Difference) -> str:
    """Say of a difference of losses whether the first is better, worse, or not told apart from the other."""
    if gap.high < 0:
        return "better"
    return "worse" if gap.low > 0 else "not told apart"


def selectors_sentence(real: Real) -> str:
    """Set question-guided selection beside CacheBlend's, the order that FusionRAG has, and name what beats both."""
    ours, theirs = real.trial(SYSTEM, GUIDED), real.trial(SYSTEM, CACHEBLEND)
    if ours is None or theirs is None:
        return ""
    gap = real.gap(ours, theirs)
    agrees = {"better": "as FusionRAG has it", "worse": "which contradicts FusionRAG's order (section 3.2)"}
    told = agrees.get(verdict(gap), "which FusionRAG's order (section 3.2) is not seen in")
    pair = {trial: said(real.score(trial)["mean"]) for trial in (ours, theirs)}
    words = (
        f"At {RATIO:.0%} question-guided selection by the last layer has a KL of {pair[ours]}, CacheBlend's "
        f"{pair[theirs]} (difference {spread(gap)}), {told}."
    )
    others = {
        "by all layers": real.trial(SYSTEM, "query_guided(layers=all)"),
        "answer-guided": real.trial(SYSTEM, "answer_guided"),
    }
    better = [
        f"{name} {said(real.score(trial)['mean'])}"
        for name, trial in others.items()
        if trial and verdict(real.gap(trial, ours)) == verdict(real.gap(trial, theirs)) == "better"
    ]
    return words + (f" Better than both: {', '.join(better)}." if better else "")


def best_sentence(real: Real) -> str:
    """Name the methods with the least KL and with the least likelihood lost, of those that do not read it all first."""
    rows = real.rows()
    full = float(rows[rows["mode"] == "full"].rows.iloc[0]) if "full" in set(rows["mode"]) else float("inf")
    cheap = rows[(rows["mode"] == "block") & (rows["rows"] < full) & rows.ratio.fillna(RATIO).eq(RATIO)]
    words = []
    for measure, called in SAID.items():
        row = cheap.loc[cheap[measure].idxmin()].to_dict()
        ends = f"[{said(row[f'{measure}_low'])}, {said(row[f'{measure}_high'])}]"
        words.append(f"least {called}: {name_of(row)}, {said(row[measure])} {ends}")
    share = cheap.loc[cheap.kl.idxmin()].kl_explained
    closed = f", {share:.0%} of what Full Reuse loses won back" if share == share else ""
    return f"{words[0][0].upper()}{words[0][1:]}{closed}; {words[1]}."


def preparation_gains(real: Real, similar: str, selectors: Sequence[str], measure: str = "kl") -> dict[str, Difference]:
    """Return what preparation by `similar` changes of a loss, by selector, against preparation behind the system."""
    pairs = {select: (real.trial(similar, select), real.trial(SYSTEM, select)) for select in selectors}
    return {select: real.gap(one, other, measure) for select, (one, other) in pairs.items() if one and other}


def preparation_sentence(real: Real, similar: str, selectors: Sequence[str]) -> str:
    """Say which selectors preparation lifts, and which prepared selector is best, beside FusionRAG's figure 16."""
    words, every = [], True
    for measure, called in SAID.items():
        gains = preparation_gains(real, similar, selectors, measure)
        if not gains:
            return ""
        lifted = [select for select, gap in gains.items() if verdict(gap) == "better"]
        rest = [f"{_short(select)} {spread(gap)}" for select, gap in gains.items() if select not in lifted]
        not_for = f" (not for {', '.join(rest)})" if rest else ""
        words.append(f"{called} falls for {len(lifted)} of {len(gains)}{not_for}")
        every = every and not rest
    told = "as in FusionRAG's figure 16" if every else "FusionRAG's figure 16 has a gain for every selector"
    return f"Preparation by {neighbours_of(similar)} neighbours: {'; '.join(words)}; {told}. {_prepared(real, similar)}"


def _prepared(real: Real, similar: str) -> str:
    """Say whether question-guided selection is better than CacheBlend's where both are prepared."""
    ours, theirs = real.trial(similar, GUIDED), real.trial(similar, CACHEBLEND)
    if ours is None or theirs is None:
        return ""
    gap = real.gap(ours, theirs)
    told = {"better": "as the paper has it", "worse": "against the paper"}.get(verdict(gap), "not told apart")
    return f"Prepared, question-guided selection stands {spread(gap)} in KL beside CacheBlend's: {told}."


def neighbours_sentence(points: Sequence[Mapping[str, Any]], measure: str, most: Difference | None = None) -> str:
    """Say which number of neighbours is best by a loss, beside FusionRAG's 10 (section 5.3.2, figure 17).

    `points` {at, mean}; `most` is the difference of the largest number and the best one, question by question.
    """
    best, last = min(points, key=lambda r: r["mean"]), max(points, key=lambda r: r["at"])
    listed = ", ".join(f"{said(r['mean'])} at {r['at']}" for r in sorted(points, key=lambda r: r["at"]))
    head = f"By {SAID.get(measure, MEASURES[measure].words)} ({listed}) the best n is {best['at']}"
    if best["at"] == last["at"]:
        return f"{head}, which agrees with FusionRAG, where n = 10 is best."
    gap = f" ({spread(most)})" if most is not None else ""
    if most is not None and verdict(most) != "worse":
        return f"{head}; n = {last['at']} is not told apart{gap}: a plateau, which FusionRAG's n = 10 lies on."
    return f"{head} and quality falls to n = {last['at']}{gap}, which contradicts FusionRAG, where n = 10 is best."


def _short(select: str) -> str:
    return SELECTORS.name_of(select).replace(" (FusionRAG)", "").replace("KV deviation (CacheBlend)", "CacheBlend")
