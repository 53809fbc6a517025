"""One sentence for each shipped notebook: what its run found, made of its metrics and worded by their signs.

The report's index shows it. Every function takes what the notebook saves as metrics.json.
"""

from collections.abc import Mapping
from typing import Any

from workbench.plots.marks.styles import SELECTORS
from workbench.plots.reports.findings import compared, times

Metrics = Mapping[str, Any]


def _sooner(full: float, ours: float) -> str:
    return times(full / ours, "sooner", "later")


def reuse(found: Metrics) -> str:
    """Tell what reuse costs in answers and saves in time."""
    gap = compared("blocks cached independently answer", "full attention", found["em_block"] - found["em_full"])
    naive = compared("naive positions", "that", found["em_naive"] - found["em_block"])
    sooner = _sooner(found["ttft_full_ms"], found["ttft_block_ms"])
    return f"Of {found['samples']} questions {gap}, {naive}; at {found['ttft_context']:,} tokens they start {sooner}."


def recomputation(found: Metrics) -> str:
    """Tell the best and the worst selector at 15%, beside random tokens and full attention."""
    em = {name: value for name, value in found["at_15_percent"].items() if name not in ("oracle", "all")}
    best, worst = (choice(em, key=em.__getitem__) for choice in (max, min))
    beside = f"random {em['random']:.1%}, " if "random" in em else ""
    return (
        f"With 15% of the tokens recomputed, {SELECTORS.name_of(best)} answers {em[best]:.1%}, {beside}"
        f"{SELECTORS.name_of(worst)} {em[worst]:.1%}; full attention {found['em_full']:.1%} "
        f"(n = {found['measured_samples']:,})."
    )


def latency(found: Metrics) -> str:
    """Tell how much sooner cached blocks start than full attention and than a stock prefix cache."""
    ms = found["ttft_ms"]
    return (
        f"At {found['context']:,} tokens cached blocks start {_sooner(ms['full'], ms['block'])} than full attention "
        f"and {_sooner(ms['stock prefix'], ms['block'])} than a stock prefix cache, with 15% recomputed "
        f"{_sooner(ms['full'], ms['recompute'])} than full attention ({found['device']})."
    )
