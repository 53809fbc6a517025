"""CompactAttention."""

from workbench.experiments.bench_reports import BOTH
from workbench.experiments.papers import structure
from workbench.experiments.papers.evidence import faster, gap, measured, sparse_right, sparse_specs, times
from workbench.experiments.papers.verdicts import Findings, Item
from workbench.metrics.published_numbers import COMPACT_TEXT

CLOSE = 0.02  # "close to dense attention": the text gives no number
SPEEDUP, WHOLE = COMPACT_TEXT["attention_speedup"], COMPACT_TEXT["end_to_end_speedup"]
TASKS = {"multi-key": "multi-key needles", "common": "common words"}


def attention() -> Findings:
    """Compare a chunk of 1,024 rows over 128K, choice included, with dense attention."""
    found = []
    for share in (0.25, 0.1):
        name = f"{BOTH}chunk of 1024, {share:.0%}"
        what = f"chunk of 1,024 over 128K, {share:.0%} of the pages, choice included, against cuDNN's dense"
        found += faster(what, times("choose_flash_prefill", begins=name), "cudnn, dense", SPEEDUP)
    return found


def accuracy() -> Findings:
    """Compare the union over FlashPrefill with dense attention on the lab questions."""
    union = sparse_specs("compact(over=flash_prefill").iloc[0]
    dense = sparse_right(sparse_specs("dense").spec.iloc[0])
    what = f"union over FlashPrefill, {union.density:.0%} of the pairs, against dense"
    return [gap(what, sparse_right(union.spec), dense, "above", -CLOSE, "lab")]


def coverage() -> Findings:
    """Compare what rankings keep, and QUOKA and the union with dense attention on the needles."""
    dense = sparse_specs("dense").spec.iloc[0]
    budget = f"keep={COMPACT_TEXT['quoka_budget']:g},"
    quoka = next(spec for spec in sparse_specs("quoka").spec if budget in spec)
    union = sparse_specs("compact(over=flash_prefill").spec.iloc[0]
    found = measured("largest keys by any query that the mean misses", "missed_by_mean_ranking", "above", 0.0, ".1%")
    for task, name in TASKS.items():
        theirs = sparse_right(dense, "needles", task)
        by_quoka, by_union = (sparse_right(spec, "needles", task) for spec in (quoka, union))
        found.append(gap(f"QUOKA against dense, {name}", by_quoka, theirs, "below", 0.0, "lab"))
        found.append(gap(f"union against dense, {name}", by_union, theirs, "above", -0.05, "lab"))
    return found


def items() -> list[Item]:
    """Return the figures."""
    return [
        Item(
            "compact-fig-1",
            "Paged attention over a union of blocks is faster than dense attention under chunked prefill, and as good.",
            f"{SPEEDUP}× at 128K; kernels at {COMPACT_TEXT['kernel_sparsity']:.0%} sparsity: ideal 10×",
            lambda: attention() + accuracy(),
            "1b and 1c (one pass against chunks at equal sparsity; cumulative search) are not measured on a GPU",
        ),
        Item(
            "compact-fig-2",
            "A ranking by the mean misses keys that single queries need, and QUOKA loses where those matter.",
            "",
            coverage,
        ),
        Item(
            "compact-fig-3",
            "The union of all query blocks and heads of a group covers the mask and is the least page table that does.",
            find=structure.block_union,
        ),
        Item(
            "compact-fig-4",
            "A page table of its own for each KV head selects blocks in place, without a copy.",
            find=structure.page_tables,
        ),
        Item(
            "compact-fig-5",
            "Attention and the whole chunked prefill get faster the longer the context.",
            f"128K: attention {SPEEDUP}×, end to end {WHOLE}×",
            attention,
            "lengths below 128K and the whole prefill in chunks are not measured",
        ),
    ]
