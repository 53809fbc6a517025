"""CompactAttention."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from workbench.experiments import chunk_reports
from workbench.experiments.bench_reports import BOTH
from workbench.experiments.chunk_reports import PRINTED_AT
from workbench.experiments.papers import structure
from workbench.experiments.papers.evidence import faster, gap, measured, times
from workbench.experiments.papers.sparse_evidence import (
    chosen_and_read,
    needles_over_seeds,
    needles_right,
    sparse_over_seeds,
    sparse_right,
    sparse_specs,
)
from workbench.experiments.papers.verdicts import Finding, Findings, Item, Side, leading
from workbench.metrics.published_numbers import COMPACT_TEXT

CLOSE = 0.02  # "close to dense attention": the text gives no number
SPEEDUP, WHOLE = COMPACT_TEXT["attention_speedup"], COMPACT_TEXT["end_to_end_speedup"]
UNION = "compact(over=flash_prefill)"
TASKS = {"multi-key": "multi-key needles", "common": "common words"}
FIGURE_1 = {"chunk_kernels": "1b, one pass against a chunk at the same sparsity", "chunk_choices": "1c, summed choices"}
FIGURE_5 = {"chunk_attention": "attention at lengths below 128K", "chunked": "the whole prefill in chunks"}


def attention() -> Findings:
    """Compare a chunk of 1,024 rows over 128K, choice included, with dense attention."""
    found = []
    for share in (0.25, 0.1):
        name = f"{BOTH}chunk of 1024, {share:.0%}"
        what = f"chunk of 1,024 over 128K, {share:.0%} of the pages, choice included, against cuDNN's dense"
        found += faster(what, times("choose_flash_prefill", begins=name), "cudnn, dense", SPEEDUP)
    return found


def timed(what: str, row: Mapping[str, Any], bar: float, side: Side = "above") -> Finding:
    """Return a ratio {mean, low, high, runs} of two times beside its bar."""
    return Finding(what, row["mean"], row["low"], row["high"], row["runs"], "shape", side, bar, "x")


def sparsity() -> Findings:
    """Compare what the same sparsity gives a kernel in a chunk and in one pass (figure 1b)."""
    rows = {row["whole"]: row for row in chunk_reports.equal_sparsity() if row["name"] == "ours"}
    if set(rows) != {True, False}:
        return []
    return [timed("block-sparse kernel in a chunk over dense, below one pass", rows[False], rows[True]["low"], "below")]


def searches() -> Findings:
    """Compare choices summed over the chunks of the longest prompt with one pass over it (figure 1c)."""
    rows, found = chunk_reports.searches(), []
    longest = max((row["at"] for row in rows), default=0)
    of = {(row["name"], row["way"]): row for row in rows if row["at"] == longest}
    for (name, way), row in of.items():
        if way == "in chunks" and (name, "one pass") in of:
            what = f"choices of {name} summed over the chunks of {longest:,} tokens, over one pass"
            found.append(timed(what, chunk_reports.ratio(row, of[name, "one pass"]), 1.0))
    return found


def by_length(rows: Sequence[Mapping[str, Any]], what: str, printed: float) -> Findings:
    """Compare the union at the longest prompt with the printed speed-up, and with the shortest (figure 5).

    Shorter prompts beside dense attention are shown: the paper prints no number of them. Where the length of which it
    prints one is not timed, the claim stays open.
    """
    own = [row for row in rows if row["name"] == UNION]
    if len(own) < 2:
        return []
    grows = f"{what} at {own[-1]['at']:,} tokens, above that at {own[0]['at']:,}"
    shorter = [timed(f"{what} at {row['at']:,} tokens", row, 1.0) for row in own[:-1]]
    return [
        replace(timed(f"{what} at {own[-1]['at']:,} tokens", own[-1], printed), reached=own[-1]["at"] >= PRINTED_AT),
        timed(grows, own[-1], own[0]["high"]),
        *(replace(finding, decides=False) for finding in shorter),
    ]


def speedups() -> Findings:
    """Read attention and whole prefill in chunks over dense, by length."""
    found = by_length(chunk_reports.attention(), "attention of the last chunk over dense", SPEEDUP)
    found += by_length(chunk_reports.whole_prefill(), "the whole prompt in chunks over dense", WHOLE)
    return found or attention()


def unmeasured(reports: Mapping[str, str]) -> str:
    """Name the parts whose report is not committed: report → what it would say."""
    absent = [reports[name] for name in chunk_reports.missing(list(reports))]
    return f"not measured yet: {'; '.join(absent)}" if absent else ""


def not_whole() -> str:
    """Name the methods whose attention alone is timed in chunks."""
    names = chunk_reports.untimed()
    return f"the whole prompt in chunks under {', '.join(names)}: not timed" if names else ""


def lacking(reports: Mapping[str, str]) -> Callable[[], str]:
    """Return the function that names what is not measured."""
    return partial(unmeasured, reports)


def accuracy() -> Findings:
    """Compare the union over FlashPrefill with dense attention on the lab questions."""
    union = sparse_specs("compact(over=flash_prefill").iloc[0]
    dense = sparse_right(sparse_specs("dense").spec.iloc[0])
    what = f"union over FlashPrefill, {chosen_and_read(union.density, union.union)}, against dense"
    over = sparse_over_seeds("union over FlashPrefill against dense", "compact(over=flash_prefill", 1, "above", -CLOSE)
    return [gap(what, sparse_right(union.spec), dense, "above", -CLOSE, "lab"), *over]


def coverage() -> Findings:
    """Compare what rankings keep, and QUOKA and the union with dense attention on the needles."""
    dense = sparse_specs("dense").spec.iloc[0]
    budget = re.compile(rf"keep={COMPACT_TEXT['quoka_budget']:g}[,)]")
    quoka = next(spec for spec in sparse_specs("quoka").spec if budget.search(spec))
    union = sparse_specs("compact(over=flash_prefill").spec.iloc[0]
    found = measured("largest keys by any query that the mean misses", "missed_by_mean_ranking", "above", 0.0, ".1%")
    for task in TASKS:
        found += on_needles("QUOKA against dense", task, quoka, dense, "below", 0.0)
        found += on_needles("union against dense", task, union, dense, "above", -0.05)
    return found


def on_needles(what: str, task: str, spec: str, dense: str, side: Side, bar: float) -> Findings:
    """Compare a method with dense attention on a needle task: over training seeds where that decides, else of one."""
    what = f"{what}, {TASKS[task]}"
    over = needles_over_seeds(what, task, spec, side, bar)
    deciding = [finding for finding in over if finding.decides]
    one = gap(what, needles_right(spec, task), needles_right(dense, task), side, bar, "lab")
    return [*leading(deciding, [one]), *(finding for finding in over if not finding.decides)]


def items() -> list[Item]:
    """Return the figures."""
    return [
        Item(
            "compact-fig-1",
            "Paged attention over a union of blocks is faster than dense attention under chunked prefill, and as good.",
            f"{SPEEDUP}× at 128K; kernels at {COMPACT_TEXT['kernel_sparsity']:.0%} sparsity: ideal 10×",
            lambda: attention() + accuracy() + sparsity() + searches(),
            lacking(FIGURE_1),
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
            speedups,
            lambda: "; ".join(filter(None, (unmeasured(FIGURE_5), not_whole()))),
        ),
    ]
