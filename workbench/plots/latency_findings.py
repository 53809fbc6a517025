"""What measured times say: sentences whose words turn with the sign of the numbers."""

from collections.abc import Mapping, Sequence
from typing import Any

from workbench.metrics.published_numbers import FUSION_RAG
from workbench.plots.findings import times

Row = Mapping[str, Any]
SAME = 0.05  # times that differ by less are called alike
__all__ = ["beside_full", "floor_rises", "fusion_rag_times", "saved_by_dropping", "times", "work_when_cold"]


def beside_full(ratio: float) -> str:
    """Say how many times less or more something takes than full attention: its time is full attention's / `ratio`."""
    return times(ratio, "less than full attention", "more than full attention")


def work_when_cold(cold: Row, full: Row) -> str:
    """Say what encoding all blocks apart costs in operations where least is cached: records {share, flops}."""
    ratio = cold["flops"] / full["flops"]
    return f"With {cold['share']:.0%} cached, blocks encoded apart take {ratio:.2f} times its operations."


def saved_by_dropping(dense: Mapping[str, float], few: Mapping[str, float], density: float) -> str:
    """Say what a sparse prefill saves: seconds by stage of dense attention, and at `density`."""
    attended = 1 - few["attend"] / dense["attend"]
    whole = sum(few.values()) / sum(dense.values()) - 1
    if attended > SAME:
        said = f"attention takes {attended:.0%} less with {1 - density:.0%} of the pairs left out"
    elif attended < -SAME:
        said = f"attention takes {-attended:.0%} more, though {1 - density:.0%} of the pairs are left out"
    else:
        said = f"attention takes as long, though {1 - density:.0%} of the pairs are left out"
    way = "faster" if whole < 0 else "slower"
    return f"On this device {said}; the whole prefill is {abs(whole):.0%} {way}."


def floor_rises(floors: Sequence[Row]) -> str:
    """Say how the floor of the time of two methods grows over the lengths: records {length, way, floor}."""
    parts = []
    for way, name in (("full", "full attention"), ("block", "reuse")):
        of_way = sorted((r for r in floors if r["way"] == way), key=lambda r: r["length"])
        if of_way:
            parts.append(f"{of_way[-1]['floor'] / of_way[0]['floor']:.1f} times ({name})")
    if not parts:
        return ""
    lengths = [r["length"] for r in floors]
    return f"From {min(lengths):,} to {max(lengths):,} tokens the floor grows {' and '.join(parts)}."


def fusion_rag_times() -> str:
    """Say what FusionRAG prints of its times."""
    low, high = FUSION_RAG["faster_than_full"]
    return (
        f"FusionRAG prints {low} to {high} times less at {FUSION_RAG['ratio']:.0%} of 27K tokens, and "
        f"{FUSION_RAG['operator_faster']} times over FlashAttention for its operator at 32K (L20)."
    )
