"""FusionRAG: its figures and tables, each with what is measured here."""

from functools import partial

from workbench.experiments.papers import fusion_rag_store as store
from workbench.experiments.papers import structure
from workbench.experiments.papers.fusion_rag_answers import faithfulness, smaller_model, together
from workbench.experiments.papers.fusion_rag_quality import (
    ablation,
    at_other_ratios,
    better_than_baselines,
    components,
    deviation,
    near_full,
    neighbours,
    places,
    similarity,
    stages,
    wins_back,
)
from workbench.experiments.papers.fusion_rag_times import latency, other_lengths, recomputation, unmeasured
from workbench.experiments.papers.verdicts import Findings, Item, item_of
from workbench.metrics.published_numbers import FUSION_RAG, FUSION_RAG_TABLE_2

NOT_RUN = "CacheBlend's and Cache-Craft's own code was not run: their choices are carried out by the engine here"


def items() -> list[Item]:
    """Return the figures and tables."""
    f1, share, best = FUSION_RAG["f1"], FUSION_RAG["recovered_by_component"], FUSION_RAG["faster_than_full"]
    blend, craft = (FUSION_RAG["gain_by_preparation"][name] for name in ("CacheBlend", "Cache-Craft"))
    enough, of = FUSION_RAG["recovered_80_percent"]
    faithful = FUSION_RAG_TABLE_2["faithfulness"].values()
    item = partial(item_of, "fusionrag")
    return [
        item(
            "fig-1", "FusionRAG moves work offline: as many rows online as CacheBlend, and better answers.", "", stages
        ),
        item(
            "fig-2",
            "At 15% FusionRAG is better than CacheBlend and Cache-Craft, which fall to a smaller model's level.",
            "CacheBlend at 15% of a 7B model stands where 3B stands",
            lambda: better_than_baselines() + smaller_model(),
            lambda: "" if smaller_model() else "the level of a smaller model: no second size is measured yet",
        ),
        item(
            "fig-3",
            "The 15% of tokens that deviate most hold less than half of the deviation; it lies at heads of chunks and "
            "in later chunks.",
            f"over {FUSION_RAG['outside_15_percent']:.0%} left in layer 2",
            deviation,
        ),
        item(
            "fig-4",
            "Full Reuse computes the question online, over chunks cached behind the system prompt.",
            "",
            offline,
        ),
        item("fig-5", "Under Full Reuse a chunk sees the system prompt and itself.", "", structure.full_reuse),
        item(
            "fig-6", "Cache fusion computes chosen tokens and question under a causal mask.", "", structure.cache_fusion
        ),
        item(
            "fig-7",
            "Chunks of a question are alike, and preparation behind similar chunks removes most of the deviation.",
            f"> 50% at 2, > 80% at 10 neighbours; {FUSION_RAG['kv_change']:.0%} deviation",
            similarity,
            lambda: "" if together() else "7a needs passages that a retriever returned: those of the lab are drawn",
        ),
        item(
            "fig-8",
            "CacheBlend chooses heads of chunks and later chunks; the query-guided choice is more even.",
            "",
            places,
        ),
        item("fig-9", "A small model with FusionRAG is as good as with full attention.", "", near_full),
        item(
            "fig-10",
            "A cached chunk is found behind any other chunks, and kept once.",
            f"storage −{FUSION_RAG['storage_saved']:.1%}, hit rate {FUSION_RAG['hit_rate']:.1%} (section 5.3.3)",
            store.alternative_path,
        ),
        item(
            "fig-11",
            "Loading of KV overlaps with computing of other requests.",
            f"time to the first token −{FUSION_RAG['overlap']:.0%} (section 5.3.3)",
            store.overlapping,
            store.unmeasured,
        ),
        item(
            "fig-12",
            "Recomputed tokens get pages of their own; the shared chunk stays intact.",
            "",
            structure.exclusive_pages,
        ),
        item(
            "fig-13",
            "At 15% FusionRAG wins back most of what reuse loses, and more than the baselines.",
            f"56% to 100% on multi-hop data; {enough} of {of} cases over 80%",
            lambda: wins_back() + better_than_baselines() + at_other_ratios(),
        ),
        item(
            "fig-14",
            "Reuse and recomputation of 15% bring the first token sooner, and the kernel is faster than dense.",
            f"{best[0]}–{best[1]}× at 15% of 27K; kernel {FUSION_RAG['operator_faster']}×",
            latency,
            unmeasured,
        ),
        item(
            "fig-15",
            "More questions a second at the same latency.",
            "{}–{}×".format(*FUSION_RAG["throughput"]),
            store.throughput,
            lambda: "; ".join(filter(None, (NOT_RUN, store.unmeasured()))),
        ),
        item(
            "fig-16",
            "Preparation lifts other selectors too, and the query-guided choice stays the best.",
            f"CacheBlend +{blend[0]:.1%} to +{blend[1]:.1%}, Cache-Craft +{craft[0]:.1%} to +{craft[1]:.1%}",
            ablation,
        ),
        item("fig-17", "Ten neighbours are best: fewer are worse, more bring noise.", "10 best, 15 worse", neighbours),
        item(
            "fig-18",
            "Every component counts: the selector wins back most, preparation nearly the rest, the kernel the time.",
            f"F1 {f1['reuse']}, {f1['query-guided']} ({share['query-guided']:.0%} as printed), {f1['full']}; "
            f"TTFT −{FUSION_RAG['ttft_reduced_by_kernel']:.1%}",
            lambda: components() + store.scheduler(),
        ),
        item(
            "fig-19",
            "The first token comes sooner than with full attention at all lengths, from host memory and SSD.",
            "{}–{}× over full attention at 15%".format(*FUSION_RAG["over_full"]),
            lambda: recomputation(FUSION_RAG["over_full"][0]) + store.tiers(),
            lambda: "; ".join(filter(None, (other_lengths(), NOT_RUN, "" if store.tiers() else "KV from an SSD"))),
        ),
        item("table-1", "Notation.", "", None, "it claims nothing: a list of symbols"),
        item(
            "table-2",
            "FusionRAG's answers are the most faithful to their passages.",
            f"best in {sum(row[2] == max(row) for row in faithful)} of {len(faithful)} cases",
            faithfulness,
            lambda: "on real questions a large language model judges, which is not at hand",
        ),
    ]


def offline() -> Findings:
    """Carry out both stages of Full Reuse."""
    return structure.full_reuse() + structure.pipeline()[:1]
