"""One prompt with its passages in many orders: how near a method stays to full attention."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from workbench.plots.marks.line_styles import selector_looks
from workbench.plots.marks.lines import profile, profiles
from workbench.plots.marks.styles import SELECTORS

Records = Sequence[Mapping[str, Any]]  # of `PromptPage.records`


def by_order(records: Records, *, about: str) -> go.Figure:
    """Draw by selector and ratio in how many orders the answer is that of full attention, and the mean KL."""
    specs = [spec for spec in dict.fromkeys(record["select"] for record in records) if spec not in ("none", "all")]
    panels = [
        profile("same answer as full attention", curves(records, specs, "same"), "share recomputed", percent=True),
        profile("KL from full attention (nats)", curves(records, specs, "kl"), "share recomputed"),
    ]
    orders = len({record["order"] for record in records})
    return profiles(
        [replace(panel, x={**panel.x, "tickformat": ".0%"}) for panel in panels],
        title="How much the order of the passages decides",
        caption=f"Mean over {orders} orders of the passages, some without one of them; at 0%: reuse alone. {about}.",
        **selector_looks(specs),
    )


def curves(records: Records, specs: Sequence[str], measure: str) -> list[dict[str, Any]]:
    """Return means {name, at, mean} by selector and ratio of "kl" or "same" (answers); at 0 stands reuse alone."""
    table = pd.DataFrame(records).assign(same=[float(record["answer"] == record["full"]) for record in records])
    points = []
    for spec in specs:
        part = pd.concat([table[table["select"] == "none"].assign(ratio=0.0), table[table["select"] == spec]])
        means = part.groupby("ratio")[measure].mean()
        points += [{"name": SELECTORS.name_of(spec), "at": ratio, "mean": float(mean)} for ratio, mean in means.items()]
    return points


def found(records: Records) -> dict[str, Any]:
    """Return the numbers of a grid: orders, combinations, and the share of equal answers by selector."""
    table = pd.DataFrame(records)
    same = (table.answer == table.full).groupby(table["select"]).mean()
    return {
        "orders": int(table.order.nunique()),
        "combinations": len(table),
        "same_answer": {spec: float(share) for spec, share in same.items()},
        "same_first_token": float(table.agree.mean()),
        "kl_mean": float(table.kl.mean()),
        "flops_share": float((table.flops / table.flops_full).mean()),
    }
