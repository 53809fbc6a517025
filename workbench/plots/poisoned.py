"""What an attacker's text does to cached passages, with sentences that follow the numbers."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from workbench.plots.findings import joined
from workbench.plots.lines import Panel, Series, line_chart
from workbench.plots.styles import Look
from workbench.plots.theme import BLUE, GREEN, ORANGE, RED


def poisoned_blocks(kept: Mapping[str, Any]) -> go.Figure:
    """Draw what an attacker's text does to another prompt's cached passage, against the share that is recomputed."""
    rows = pd.DataFrame(kept["rows"])
    names = list(dict.fromkeys(rows.arm))
    looks = dict(zip(names, (Look(RED), Look(BLUE, "square"), *_pairs()), strict=False))
    panels = []
    for field, title, form in (
        ("kl", "KL (nats a token)", ".2g"),
        ("toward", "odds of its answer, change (nats)", "+.2g"),
        ("changed", "answers that change", ".0%"),
    ):
        lines = []
        for name in names:
            arm = rows[rows.arm == name]
            hover = f"%{{x:.0%}} recomputed: %{{y:{form}}}<br>{field}"
            ends = arm[f"{field}_low"], arm[f"{field}_high"]
            lines.append(Series(name, arm.ratio, arm[field], *ends, hover=hover, look=looks[name], size=6))
        y = {"tickformat": ".0%"} if field == "changed" else {}
        panels.append(Panel(title, lines, {"title_text": "share recomputed", "tickformat": ".0%"}, y))
    return line_chart(
        panels,
        lines=2,
        height=300,
        spacing=0.07,
        bars=True,
        title="Cached passages that have seen an attacker's text",
        notice=poisoned_said(kept),
        caption=f"{kept['model']}, n = {kept['n']} questions, seed {kept['seed']}; query-guided recomputation; 95% "
        "intervals. KL from the same request without the text, at the right answer; odds: its answer's log-odds "
        f"over the right one. The text is the passage with another answer in it (“{kept['example']['text']}”), not "
        "optimised as HijackKV's, and not in the victim's prompt. Harmless copy: the passage with a sentence "
        "twice instead. "
        f"{kept['device']}.",
    )


def _pairs() -> list[Look]:
    dark = [Look(colour, symbol) for colour, symbol in ((ORANGE, "diamond"), (GREEN, "triangle-up"))]
    return [look for one in dark for look in (one, replace(one, symbol=f"{one.symbol}-open", dash="dot"))]


def poisoned_said(kept: Mapping[str, Any]) -> str:
    """Say what reaches the victim, by which way, and what recomputation leaves of it."""
    rows = pd.DataFrame(kept["rows"]).set_index(["arm", "ratio"])
    tokens, chains = (rows.loc[name] for name in ("keys of tokens", "content chains"))
    reasons = joined([f"{count} {reason}" for reason, count in kept["misses"].items()])
    held = "nothing" if float(chains.kl.max()) == 0 else f"a KL of up to {chains.kl.max():.2g}"
    parts = [
        f"With keys of content chains {held} reaches the victim (look-ups: {reasons}); with keys of tokens alone the "
        f"KL is {tokens.kl[0.0]:.2g}."
    ]
    for name in dict.fromkeys(arm for arm, _ in rows.index if "neighbour" in arm and "," not in arm):
        alone, harmless = rows.loc[name], rows.loc[f"{name}, harmless copy"]
        low, high = alone.toward_low[0.0], alone.toward_high[0.0]
        turned = "towards the attacker's answer" if low > 0 else "away from it" if high < 0 else "to neither answer"
        parts.append(
            f"Prepared with {name}, {alone.reached[0.0]:.0%} have seen it: {alone.changed[0.0]:.0%} of the answers "
            f"change ({harmless.changed[0.0]:.0%} by a harmless copy), odds move {turned}."
        )
    undone = [ratio for ratio in tokens.index if all(rows.kl[arm, ratio] <= 1e-6 for arm, _ in rows.index)]
    parts.append(f"Undone for all from {min(undone):.0%} recomputed on." if undone else "No share undoes it for all.")
    return " ".join(parts)
