"""FusionRAG's quality beside other methods, from results: selectors, preparation, neighbours, deviation.

"CacheBlend" is the selector by KV deviation, "Cache-Craft" the one by inter-chunk attention.
"""

from dataclasses import replace
from functools import cache

from workbench.experiments.papers.evidence import (
    FULL,
    LEAST,
    Method,
    counted,
    fusion_gap,
    measured,
    real_gap,
    real_recovered,
    recovered,
    trial,
)
from workbench.experiments.papers.fusion_rag_answers import (
    compared_on_harder_lab,
    lifted_on_harder_lab,
    on_harder_lab,
    preparation_alone,
    together,
    won_back_on_harder_lab,
)
from workbench.experiments.papers.fusion_rag_times import recomputation
from workbench.experiments.papers.verdicts import Findings, leading
from workbench.metrics.published_numbers import FUSION_RAG

RATIO = FUSION_RAG["ratio"]
REAL = "with_neighbours(n={}, search=exact)"
MINILM = "with_neighbours(n={}, embedder=minilm)"  # as the results name it
TEN = REAL.format(FUSION_RAG["neighbours"])
REUSE: Method = ("after_system", "none", None)
BLEND: Method = ("after_system", "kv_deviation", RATIO)
CRAFT: Method = ("after_system", "inter_attention", RATIO)
GUIDED: Method = ("after_system", "query_guided", RATIO)
FUSION: Method = (TEN, "query_guided", RATIO)
PREPARED: Method = (TEN, "kv_deviation", RATIO)
NAMES = {BLEND: "CacheBlend", CRAFT: "Cache-Craft", FUSION: "FusionRAG", PREPARED: "CacheBlend, prepared"}
LIFTED = "CacheBlend, prepared", "CacheBlend"
LIKELIHOOD = "nll", "likelihood lost"
NEAR = FUSION_RAG["near_full_em"][2]
MOST = 0.5  # "most" of the KL; the printed shares are of F1


def real_name(method: Method) -> str:
    """Return what `data/benchmarks/real.py` calls a method."""
    prepare, select, ratio = method
    return prepare if select == "none" else f"{prepare}, {select} {ratio:.0%}"


@cache
def better(one: Method, other: Method, what: str) -> Findings:
    """Compare two methods by KL on the real model, and by exact match on the lab questions."""
    return leading(real_gap(what, real_name(one), real_name(other)), [fusion_gap(what, one, other)])


def better_than_baselines() -> Findings:
    """Compare FusionRAG with CacheBlend and Cache-Craft at the same ratio."""
    pairs = [better(FUSION, other, f"FusionRAG against {NAMES[other]}, 15%") for other in (BLEND, CRAFT)]
    return beside([one for pair in pairs for one in pair], on_harder_lab("right", "exact match"))


def beside(found: Findings, harder: Findings) -> Findings:
    """Add what the harder lab says over training seeds: it decides where nothing real does."""
    told = any(finding.decides and finding.label == "real" for finding in found)
    return found + [replace(finding, decides=not told) for finding in harder]


def at_other_ratios() -> Findings:
    """Compare FusionRAG with CacheBlend at other ratios than the paper's, on the real model: shown."""
    found: Findings = []
    for ratio in (0.05, 0.3):
        ours, theirs = (real_name((*method[:2], ratio)) for method in (FUSION, BLEND))
        found += real_gap(f"FusionRAG against CacheBlend, {ratio:.0%}", ours, theirs)
    return [replace(finding, decides=False) for finding in found if finding.n >= LEAST]


def stages() -> Findings:
    """Compare the rows that are computed online."""
    rows = [float(trial(method).rows_computed) for method in (FUSION, BLEND)]
    more = counted("online rows more than CacheBlend's", rows[0] - rows[1], int(trial(FUSION).n), 0.0)
    return [replace(more, label="lab"), *better(FUSION, BLEND, "FusionRAG against CacheBlend, 15%")]


def deviation() -> Findings:
    """Measure how concentrated deviation is, and where."""
    left = FUSION_RAG["outside_15_percent"]
    return [
        *measured("left outside the 15% that deviate most, layer 2", "left_outside_15_percent", "above", left),
        *measured("first tenth of a chunk over its mean", "first_tenth_over_mean", "above", 1.0, "x"),
        *measured("later half of the chunks over the mean", "later_half_over_mean", "above", 1.0, "x"),
    ]


def similarity() -> Findings:
    """Measure what preparation changes, and on real questions whether passages that are alike are retrieved together.

    Lab passages are drawn, so theirs is shown only.
    """
    drawn = []
    for n, bar in FUSION_RAG["retrieved_together"].items():
        what = f"another passage of the question among {n} neighbours"
        drawn += measured(what, f"together_{n}", "above", bar, real=False)
    change = measured("deviation of layer 2 by preparation", "change_by_preparation", "below", 0.0, "+.0%")
    return change + together() + [replace(finding, decides=False) for finding in drawn]


def places() -> Findings:
    """Measure where selectors choose."""
    late = "later half of the chunks over the mean"
    blend = measured("CacheBlend's choice in the first tenth of a chunk", "CacheBlend: first tenth", "above", 0.1)
    blend += measured(f"CacheBlend's choice in the {late}", "CacheBlend: later half", "above", 1.0, "x")
    guided = measured("Query-guided: first tenth, against CacheBlend", "query-guided: first tenth", "below", 0.0)
    guided += measured("Query-guided: later half, against CacheBlend", "query-guided: later half", "below", 0.0, "x")
    return blend + [replace(own, bar=other.low) for own, other in zip(guided, blend, strict=True)]


@cache
def recovers(share: float, method: Method = FUSION, what: str = "FusionRAG at 15%") -> Findings:
    """Measure what a method wins back of the loss to full attention: most of the KL, or the printed share of F1."""
    lab = recovered(f"{what}: normalised F1", method, REUSE, "above", share)
    return leading(real_recovered(f"{what}: KL won back", real_name(method), "after_system", MOST), [lab])


def wins_back() -> Findings:
    """Measure what FusionRAG wins back: most of the KL on the real model, the printed share on the lab."""
    least = FUSION_RAG["recovered"]["multi-hop"][0]
    harder = won_back_on_harder_lab("FusionRAG at 15%: share of right answers won back", "FusionRAG", least)
    return beside(recovers(least), harder)


def near_full() -> Findings:
    """Compare with full attention by exact match; KL and likelihood of the real model are shown."""
    shown = real_recovered("FusionRAG at 15%: KL won back", real_name(FUSION), "after_system", MOST)
    shown += real_gap("FusionRAG at 15% against full attention", real_name(FUSION), "full", loss=LIKELIHOOD)
    what = "FusionRAG at 15% against full attention"
    harder = compared_on_harder_lab(what, "FusionRAG", "full attention", "above", -NEAR)
    lab = leading(harder, [fusion_gap(what, FUSION, FULL, "above", -NEAR)])
    return [*lab, *(replace(finding, decides=False) for finding in shown)]


def ablation() -> Findings:
    """Compare each selector with and without preparation; what preparation gives alone is shown.

    The printed gain is of right answers, which the harder lab can tell; on the real model KL says whether there is one.
    """
    lifted, best = "CacheBlend, prepared against not", "FusionRAG against CacheBlend, prepared"
    harder = compared_on_harder_lab(lifted, *LIFTED)
    harder += compared_on_harder_lab(best, "FusionRAG", "CacheBlend, prepared")
    found = beside([*better(PREPARED, BLEND, lifted), *better(FUSION, PREPARED, best)], harder)
    least = FUSION_RAG["gain_by_preparation"]["CacheBlend"][0]
    found += lifted_on_harder_lab("right answers that preparation gives CacheBlend, of those without", *LIFTED, least)
    return found + [replace(finding, decides=False) for finding in preparation_alone()]


def neighbours() -> Findings:
    """Compare numbers of neighbours, nothing recomputed."""
    ten, one, twenty = ((REAL.format(n), "none", None) for n in (10, 1, 20))
    beyond = fusion_gap("20 neighbours against 10", twenty, ten, "below")
    by_meaning = real_gap("10 neighbours against 4, by MiniLM", MINILM.format(10), MINILM.format(4))
    shown = [replace(finding, decides=False) for finding in by_meaning]
    return [*better(ten, one, "10 neighbours against 1"), beyond, *shown]


def components() -> Findings:
    """Measure what each component adds: selector, preparation, kernel."""
    f1 = FUSION_RAG["f1"]
    share = (f1["query-guided"] - f1["reuse"]) / (f1["full"] - f1["reuse"])
    plain = "FusionRAG, unprepared"
    selector = won_back_on_harder_lab("query-guided at 15%: share of right answers won back", plain, share)
    prepared = compared_on_harder_lab("preparation on top", "FusionRAG", plain)
    return [
        *beside(recovers(share, GUIDED, "query-guided at 15%"), selector),
        *beside(better(FUSION, GUIDED, "preparation on top"), prepared),
        *recomputation(1 / (1 - FUSION_RAG["ttft_reduced_by_kernel"])),
    ]
