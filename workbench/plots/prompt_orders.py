"""One prompt with its passages in many orders: how far a method's first token is from that of full attention."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from workbench.plots.lines import profile, profiles
from workbench.plots.looks import SELECTORS, selector_looks

Records = Sequence[Mapping[str, Any]]  # of `PromptPage.records`


def by_order(records: Records, *, about: str) -> go.Figure:
    """Draw KL of the first token against the ratio by selector: mean over orders, the band from least to most."""
    specs = [spec for spec in dict.fromkeys(record["select"] for record in records) if spec not in ("none", "all")]
    panel = profile("first token", curves(records, specs), "share recomputed", "KL from full attention (nats)")
    orders = len({record["order"] for record in records})
    return profiles(
        [panel],
        title="How much the order of the passages decides",
        notice=told(records),
        caption=f"{orders} orders of the passages, some without one of them; band: least to most. {about}.",
        **selector_looks(specs),
    )


def curves(records: Records, specs: Sequence[str]) -> list[dict[str, Any]]:
    """Return {name, at, mean, low, high} by selector and ratio; at 0 stands reuse with nothing recomputed."""
    table = pd.DataFrame(records)
    points = []
    for spec in specs:
        part = pd.concat([table[table["select"] == "none"].assign(ratio=0.0), table[table["select"] == spec]])
        for ratio, group in part.groupby("ratio"):
            ends = {"mean": group.kl.mean(), "low": group.kl.min(), "high": group.kl.max()}
            points.append({"name": SELECTORS.name_of(spec), "at": ratio, **{k: float(v) for k, v in ends.items()}})
    return points


def told(records: Records) -> str:
    """Say in how many orders each choice answers as full attention does."""
    table = pd.DataFrame(records)
    same = (table.answer == table.full).groupby([table["select"], table.ratio]).mean()
    shares = [f"{_named(spec, ratio)} in {share:.0%}" for (spec, ratio), share in same.items() if spec == "none"]
    rest = same[same.index.get_level_values(0) != "none"]
    if len(rest):
        spec, ratio = rest.idxmax()
        shares.append(f"{_named(spec, ratio)} in {rest.max():.0%}")
    return f"Answers are those of full attention: {'; '.join(shares)} of the orders." if shares else ""


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


def _named(spec: str, ratio: float) -> str:
    return "reuse with nothing recomputed" if spec == "none" else f"{SELECTORS.name_of(spec)} at {ratio:.0%}"
