"""What the page "Is reuse safe?" found when its commands were run: written by docs/measured.py, told by its numbers."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from workbench.app.docs.text import table

PLACE = "<!-- measured -->"
FULL = "full"
QUIET = 0.2  # share of the processors that others used before a command, at most, where times are told
ENOUGH = 100  # questions
Row = Mapping[str, Any]


def page(text: str, kept: Path) -> str:
    """Return the page with its place filled; without a file of results its commands stand alone."""
    if not kept.is_file():
        return text.replace(PLACE, "*Not run yet: `python docs/measured.py`.*")
    return text.replace(PLACE, told(json.loads(kept.read_text(encoding="utf-8"))))


def told(kept: Mapping[str, Any]) -> str:
    """Return the verdict, a table of methods and one of what every command took."""
    took = kept["took"]
    quiet = all(each.get("busy", 1.0) <= QUIET for each in took)
    seconds = sum(each["seconds"] for each in took)
    left_out = "Times to the first token are left out here: others used the machine. Your records hold them (`ttft_s`)."
    alone = "" if quiet else " that others used, too"
    return "\n\n".join(
        [
            verdict(kept["found"]),
            _methods(kept["found"], quiet),
            *([] if quiet else [left_out]),
            f"The commands took {seconds / 60:.0f} minutes together, on {kept['cores']} cores{alone} "
            f"({kept['device']}):",
            table(("command", "seconds"), [(f"`{each['command']}`", f"{each['seconds']:.0f}") for each in took]),
        ]
    )


def verdict(found: Sequence[Row]) -> str:
    """Answer the page's question: which method moves predictions least, what that costs, and what is left open."""
    full = next(row for row in found if row["way"] == FULL)
    ranked = sorted((row for row in found if row["way"] != FULL), key=lambda row: row["kl"])
    best, worst = ranked[0], ranked[-1]
    right = "as many answers right" if best["em"] == full["em"] else f"{best['em']:.0%} of the answers right"
    beside = "" if best["em"] == full["em"] else f", full attention {full['em']:.0%}"
    share = best["rows_computed"] / full["rows_computed"]
    few = (
        " So few questions show how to ask, not what holds: ask the two or three nearest again, with hundreds."
        if best["n"] < ENOUGH
        else ""
    )
    return (
        f"Of {len(ranked)} methods, **{best['way']}** moves predictions least: {best['kl']:.3f} nats a token "
        f"({best['kl_low']:.3f} to {best['kl_high']:.3f}), the most likely token is that of full attention in "
        f"{best['agree']:.0%}, with {right}{beside} (n = {best['n']}). It computes {share:.0%} of the rows that full "
        f"attention computes. Farthest is **{worst['way']}** with {worst['kl']:.3f} nats.{few}"
    )


def _methods(found: Sequence[Row], timed: bool) -> str:
    rows = [
        (
            row["way"],
            f"{row['kl']:.3f} ({row['kl_low']:.3f} to {row['kl_high']:.3f})",
            f"{row['agree']:.0%}",
            f"{row['em']:.0%}",
            f"{row['f1']:.0%}",
            f"{row['rows_computed']:,.0f}",
            *([f"{row['ttft_p50'] * 1e3:,.0f}"] if timed else []),
        )
        for row in sorted(found, key=lambda row: row["kl"])
    ]
    return table(
        (
            "method",
            "KL, nats (95%)",
            "same top token",
            "exact match",
            "F1",
            "rows computed",
            *(["TTFT, ms"] if timed else []),
        ),
        rows,
    )
