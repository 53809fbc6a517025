"""FusionRAG's figure 2 (a smaller model), figure 7a (passages that are alike) and table 2 (faithfulness)."""

from workbench.experiments import answered_at_ratio, results
from workbench.experiments.papers.evidence import gap, has
from workbench.experiments.papers.verdicts import Finding, Findings, Side, leading
from workbench.metrics.published_numbers import FUSION_RAG
from workbench.metrics.seeds import OverSeeds

BASELINES = ("CacheBlend", "Cache-Craft")
LEVEL = 0.05  # above a smaller model, as high as figure 2 lets the baselines stand


def smaller_model() -> Findings:
    """Compare the baselines on the larger lab model with full attention on the smaller, over training seeds."""
    found = []
    for name in BASELINES if answered_at_ratio.two_sizes() else ():
        what = f"{name} at 15% on the larger model against the smaller in full"
        found.append(over_seeds(what, answered_at_ratio.against_smaller(name), "below", LEVEL))
    return found


def over_seeds(what: str, got: OverSeeds, side: Side, bar: float) -> Finding:
    """Return a difference over training seeds as a finding."""
    seeds = f"{got.seeds} training {'seed' if got.seeds == 1 else 'seeds'}"
    return Finding(f"{what}, {seeds}", got.mean, got.low, got.high, got.n, "lab", side, bar, "points")


def on_harder_lab(score: str, what: str) -> Findings:
    """Compare FusionRAG with the baselines on the harder lab, `right` or `faithful` answers; a finding a size."""
    return [
        over_seeds(f"FusionRAG against {name}, 15%: {what} ({size})", gap, "above", 0.0)
        for size in answered_at_ratio.sizes()
        for name in BASELINES
        for gap in [answered_at_ratio.gap(answered_at_ratio.over_seeds(size), "FusionRAG", name, score)]
    ]


def faithfulness() -> Findings:
    """Compare faithful answers to lab questions, whose facts can be read back; the harder lab decides, if measured."""
    one = answered_at_ratio.kept().get("lab-full")
    harder = on_harder_lab("faithful", "faithful")
    if one is None:
        return harder
    ours, *others = (answered_at_ratio.digits(one, name, "faithful") for name in ("FusionRAG", *BASELINES))
    names = zip(BASELINES, others, strict=True)
    plain = [
        gap(f"FusionRAG against {name}, 15%: faithful", ours, theirs, "above", 0.0, "lab") for name, theirs in names
    ]
    return leading(harder, plain)


def together() -> Findings:
    """Read how often passages that are alike were retrieved for one question of a real data set."""
    found = []
    for row in results.read("together")["rows"] if has("together", "json") else []:
        if (bar := FUSION_RAG["retrieved_together"].get(row["at"])) is not None:
            what = f"another passage of the question among {row['at']} neighbours ({row['data']}, {row['embedder']})"
            numbers = row["mean"], row["low"], row["high"], row["n"]
            found.append(Finding(what, *numbers, "real", "above", bar, ".0%"))
    return found
