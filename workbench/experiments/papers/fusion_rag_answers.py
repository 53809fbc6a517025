"""FusionRAG's figure 2 (a smaller model), figure 7a (passages that are alike) and table 2 (faithfulness)."""

from dataclasses import replace

from workbench.experiments import faithful_results, preparation_results
from workbench.experiments.papers.evidence import gap, over_seeds, shipped
from workbench.experiments.papers.verdicts import Finding, Findings, Side, leading
from workbench.metrics.published_numbers import FUSION_RAG
from workbench.metrics.seeds import OverSeeds

BASELINES = faithful_results.BASELINES
LEVEL = 0.05  # above a smaller model, as high as figure 2 lets the baselines stand


def smaller_model() -> Findings:
    """Compare the baselines on the larger lab model with full attention on the smaller, over training seeds."""
    found = []
    for name in BASELINES if faithful_results.two_sizes() else ():
        what = f"{name} at 15% on the larger model against the smaller in full"
        found.append(over_seeds(what, faithful_results.against_smaller(name), "below", LEVEL))
    return found


def on_harder_lab(score: str, what: str) -> Findings:
    """Compare FusionRAG with the baselines on the harder lab, `right` or `faithful` answers; a finding a size."""
    pairs = [(name, f"FusionRAG against {name}, 15%: {what}") for name in BASELINES]
    return [one for name, words in pairs for one in compared_on_harder_lab(words, "FusionRAG", name, score=score)]


def compared_on_harder_lab(
    what: str, one: str, other: str, side: Side = "above", bar: float = 0.0, score: str = "right"
) -> Findings:
    """Compare two methods of data/benchmarks/faithful.py over training seeds; a finding a size that has both."""
    return [
        over_seeds(f"{what} ({size})", faithful_results.gap(models, one, other, score), side, bar)
        for size in faithful_results.sizes()
        if (models := faithful_results.having(size, one, other))
    ]


def won_back_on_harder_lab(what: str, method: str, bar: float) -> Findings:
    """Return the share of what reuse loses that a method wins back, by right answers, over training seeds."""
    found = []
    for size in faithful_results.sizes():
        models = faithful_results.having(size, method)
        if models and (got := faithful_results.won_back(models, method)):
            found.append(replace(over_seeds(f"{what} ({size})", got, "above", bar), form=".0%"))
    return found


def lifted_on_harder_lab(what: str, method: str, plain: str, bar: float) -> Findings:
    """Return how much more a method answers right than another, relatively, as the paper prints it."""
    found = []
    for size in faithful_results.sizes():
        if models := faithful_results.having(size, method, plain):
            got = faithful_results.lifted(models, method, plain)
            found.append(replace(over_seeds(f"{what} ({size})", got, "above", bar), form="+.0%"))
    return found


def preparation_alone() -> Findings:
    """Compare preparation behind ten similar passages, and behind the true antecedent, with none: nothing recomputed.

    Of models of several training seeds, and all questions of the harder lab.
    """
    found = []
    for one in preparation_results.kept():
        rows = [row for row in preparation_results.gains(one) if row["kind"] == "all" and row["data"] == "lab-hard"]
        for row in rows if one.get("training_seeds", 1) > 1 else []:
            got = OverSeeds(one["training_seeds"], row["n"], row["gain"], row["gain_low"], row["gain_high"])
            found.append(over_seeds(f"Full Reuse behind {row['name']} ({one['model']})", got, "above", 0.0))
    return found


def faithfulness() -> Findings:
    """Compare faithful answers to lab questions, whose facts can be read back; the harder lab decides, if measured."""
    one = faithful_results.kept().get("lab-full")
    harder = on_harder_lab("faithful", "faithful")
    if one is None:
        return harder
    ours, *others = (faithful_results.digits(one, name, "faithful") for name in ("FusionRAG", *BASELINES))
    names = zip(BASELINES, others, strict=True)
    plain = [
        gap(f"FusionRAG against {name}, 15%: faithful", ours, theirs, "above", 0.0, "lab") for name, theirs in names
    ]
    return leading(harder, plain)


def together() -> Findings:
    """Read how often passages that are alike were retrieved for one question of a real data set."""
    found = []
    rows = shipped("counts", "deviation")
    for row in rows[(rows.measure == "together") & (rows.model == "")].to_dict("records"):
        if (bar := FUSION_RAG["retrieved_together"].get(row["at"])) is not None:
            what = f"another passage of the question among {row['at']:.0f} neighbours ({row['data']}, {row['kind']})"
            numbers = row["value"], row["low"], row["high"], int(row["n"])
            found.append(Finding(what, *numbers, "real", "above", bar, ".0%"))
    return found
