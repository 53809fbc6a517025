"""What measured deviations of keys and values say: sentences whose words turn with the numbers."""

from collections.abc import Mapping

import numpy as np

from workbench.metrics.kv.kv_deviation import Repair
from workbench.metrics.published_numbers import FUSION_RAG
from workbench.plots.reports.findings import judged

CAUSES = {"position": "positions", "context": "missing context", "precision": "precision"}


def of_first_passage(gaps: Mapping[str, np.ndarray], block_of: np.ndarray, floor: float) -> str:
    """Say how far layer 0, and the first passage behind the system prompt, deviate: preparation → [T, L] squared."""
    at = np.asarray(block_of)
    zero = max(float(gap[:, 0].max()) for gap in gaps.values())
    exact = "is within rounding" if zero <= floor else f"deviates by up to {zero:.1g}"
    parts = []
    for name, gap in gaps.items():
        first, later = gap[at == 1][:, 1:], gap[at > 1][:, 1:]
        if first.size and later.size:
            low = float(first.mean())
            said = "within rounding" if low <= floor else f"off by {low:.2g}"
            parts.append(
                f"under {name} the first passage is {said} on average, later ones by {float(later.mean()):.2g}"
            )
    return f"The first layer {exact}: its keys and values depend on the token alone. Of the others, {'; '.join(parts)}."


def outside_as_published(left: float, ratio: float) -> str:
    """Say whether the share of the deviation in the second layer outside a choice is what FusionRAG prints."""
    most = FUSION_RAG["outside_15_percent"]
    claim = f"over {most:.0%} is left at {FUSION_RAG['ratio']:.0%} (figure 3a)"
    return judged("FusionRAG", claim, left > most) if np.isclose(ratio, FUSION_RAG["ratio"]) else ""


def where(first_tenth: float, last_block: float) -> str:
    """Say where passages deviate: their first tenth over the rest, the last one over the second."""
    holds = first_tenth > 1 and last_block > 1
    claim = "deviation peaks at the start of chunks and in later ones (figure 3b)"
    return (
        f"Passages cached behind the system prompt deviate {first_tenth:.1f} times as much in their first tenth as in "
        f"the rest, the last passage {last_block:.1f} times as much as the second. {judged('FusionRAG', claim, holds)}"
    )


def change_as_published(change: float) -> str:
    """Say whether preparation changes the deviation as FusionRAG prints."""
    printed = FUSION_RAG["kv_change"]
    return judged("FusionRAG", f"it changes by {printed:+.0%} (figure 7b)", change <= printed / 2)


def largest_cause(typical: Mapping[str, float]) -> str:
    """Say which cause weighs most: cause → relative error."""
    most = max(CAUSES, key=lambda cause: typical[cause])
    return f"What weighs most: {CAUSES[most]}."


def context_or_question(final: Mapping[tuple[str, str], float], spec: str) -> str:
    """Say whether the question comes nearer to full attention than the context it reads: (selector, part) → left."""
    asked, context = final[spec, "asked"], final[spec, "context"]
    if asked < context:
        return "The question comes nearer to full attention than the context that it reads."
    return "The question stays as far from full attention as the context that it reads, or further."


def of_repair(selector: str, ratio: float, left: Repair) -> str:
    """Say what recomputing leaves in the last layer, of the context and of the question."""
    if not len(left.rows):
        return "Nothing is recomputed: both panels are the same."
    context, asked = float(left.context[-1]), float(left.asked[-1])
    kinder = "more" if asked < context else "no more"
    return (
        f"{selector} at {ratio:.0%} leaves {context:.0%} of the context's squared deviation in the last layer and "
        f"{asked:.0%} of the question's: it helps the question {kinder} than the context."
    )
