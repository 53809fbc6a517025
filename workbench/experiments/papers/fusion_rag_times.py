"""Times of FusionRAG's figures 14, 18 and 19: requests and the attention operator on a GPU."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from workbench.experiments import recompute_reports, results
from workbench.experiments.papers.evidence import chooser, faster, has, times
from workbench.experiments.papers.verdicts import Finding, Findings
from workbench.metrics.published_numbers import FUSION_RAG

RATIO = FUSION_RAG["ratio"]


def kernel(bar: float) -> Findings:
    """Compare attention of 15% of 32K rows with dense attention."""
    what = "15% of 32K rows against dense FlashAttention-3"
    return faster(what, times("q_sparse_attention", begins="15% of 32K"), "flashinfer, dense", bar)


@cache
def recomputation(bar: float) -> Findings:
    """Compare 15% of 27K tokens recomputed with stock full prefill."""
    rows = f"{chooser('recompute')} rows" if chooser("recompute") else "rows drawn at random"
    what = f"15% of 27K recomputed ({rows}) against stock full prefill"
    return faster(what, times("recompute"), "transformers", bar)


def other_lengths() -> str:
    """Say at which lengths the share of figure 19 was timed, where it is one alone; "" for several."""
    works = results.read("recompute")["workloads"] if has("recompute", "json") else []
    at = sorted({work["shape"]["context"] for work in works if work["shape"].get("recomputed") == RATIO})
    return f"{RATIO:.0%} recomputed was timed at {at[0] / 1024:.0f}K tokens alone" if len(at) == 1 else ""


def latency() -> Findings:
    """Compare times to the first token by recomputed share, with choice and load, and the kernel."""
    (reuse, _), (again, _) = FUSION_RAG["reuse_faster_than_full"], FUSION_RAG["faster_than_full"]
    cached = times("question", context=32768)
    return [
        *faster("question over 32K cached against stock full prefill", cached, "transformers, full", reuse),
        *recomputation(again),
        *shares(again),
        *kernel(FUSION_RAG["operator_faster"]),
        *masked_sdpa(),
    ]


def shares(bar: float) -> Findings:
    """Read 15% loaded from host memory, and say that more recomputed takes longer: 5%, 15%, 30%."""
    rows = {(row["way"], row["at"]): row for row in recompute_reports.by_share()}
    found = []
    if loaded := rows.get(("ours, loaded from host memory", RATIO)):
        found.append(_ratio("15% of 27K with choice and load against stock full prefill", loaded, bar))
    for less, more in ((0.05, RATIO), (RATIO, 0.3)):
        pair = rows.get(("ours", less)), rows.get(("ours", more))
        if pair[0] and pair[1]:
            what = f"{less:.0%} against full prefill, above {more:.0%}"
            found.append(_ratio(what, pair[0], pair[1]["high"]))
    return found


def _ratio(what: str, row: Mapping[str, Any], bar: float) -> Finding:
    return Finding(what, row["mean"], row["low"], row["high"], row["runs"], "shape", "above", bar, "x")


def masked_sdpa() -> Findings:
    """Compare attention of a share of 32K rows with torch's under a mask, at every share that was measured."""
    found, bar = [], FUSION_RAG["operator_faster_than_sdpa"]
    for share in (0.05, RATIO, 0.3):
        timed = times("q_sparse_attention", share=share)
        found += faster(f"{share:.0%} of 32K rows against SDPA with a mask", timed, "sdpa, mask", bar)
    return found


def unmeasured() -> str:
    """Name what of figure 14 is not measured."""
    absent = [f"{share:.0%} with its choice" for share in recompute_reports.missing()]
    if "ours, loaded from host memory" not in {row["way"] for row in recompute_reports.by_share()}:
        absent.append("loading from host memory")
    if not masked_sdpa():
        absent.append(f"SDPA with a mask ({FUSION_RAG['operator_faster_than_sdpa']}×)")
    return f"not measured yet: {', '.join(absent)}" if absent else ""
