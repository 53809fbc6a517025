"""What a store of cached blocks holds, and what requests found in one."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from workbench.plots.marks.table import table
from workbench.plots.marks.theme import BLUE, GREEN, INK, ORANGE, RED, escaped, finish

MOST = 400  # requests that are drawn one by one; more are joined
LOOKS = {"reused": BLUE, "recomputed": ORANGE, "encoded": RED, "computed": INK, "question": GREEN}
TIERS = {"memory": BLUE, "disk": ORANGE, "remote": RED}


def held(found: Mapping[str, Any]) -> go.Figure:
    """Draw what a store holds: `found` as of `store.files.scrub.describe`."""
    rows = [
        [name, f"{found[name]:,}"] for name in ("blocks", "tokens", "files", "bytes") if found.get(name) is not None
    ]
    rows += [[str(name), str(value)] for name, value in found["kind"].items()]
    rows += [["made with", ", ".join(f"{name} {value}" for name, value in each.items())] for each in found["made"]]
    aside = found["set_aside"]
    rows += [[f"{each['kind']}: {each['file']}", str(each["detail"])] for each in aside[:10]]
    each = found["bytes"] / found["blocks"] / 1e6 if found["blocks"] else 0
    return table(
        ["what", "value"],
        rows,
        widths=[1, 2.6],
        words=2,
        title=f"{found['folder']}",
        caption=f"{each:.2f} MB a block; {len(aside)} files were set aside as damaged or foreign. By the headers "
        "of its files; `workbench store verify` reads every block.",
    )


def requests_of(receipts: Sequence[Mapping[str, Any]], unit: str, name: str, misses: Counter[str]) -> go.Figure:
    """Draw what every request reused, recomputed and encoded: `receipts` of a record; `unit` blocks, tokens or bytes.

    Over 400 requests, neighbours are joined by their mean.
    """
    counts = {key: np.array(values, float) for key, values in _counts(receipts, unit).items()}
    groups = np.array_split(np.arange(len(receipts)), min(MOST, len(receipts)))
    fig = go.Figure()
    for key, values in counts.items():
        heights = [float(values[group].mean()) for group in groups]
        colour = LOOKS.get(key) or TIERS.get(key, BLUE)
        marker = {"color": colour, "line": {"width": 0}}
        fig.add_bar(x=[int(group[0]) for group in groups], y=heights, name=escaped(key), marker=marker)
    fig.update_layout(barmode="stack", bargap=0.05)
    fig.update_xaxes(title_text="request")
    fig.update_yaxes(title_text=f"{unit} a request", rangemode="tozero")
    total = sum(float(values.sum()) for values in counts.values()) or 1.0
    parts = [f"{values.sum() / total:.0%} {key}" for key, values in counts.items() if values.sum()]
    reasons = [f"{count:,} {reason}" for reason, count in misses.most_common()]
    return finish(
        fig,
        title="What requests found in the store",
        caption=f"{name}; {len(receipts):,} requests, by their receipts. Of all {unit}: {', '.join(parts) or 'none'}. "
        f"Misses: {', '.join(reasons) or 'none'}.",
        height=280,
        legend=6,
    )


def _counts(receipts: Sequence[Mapping[str, Any]], unit: str) -> dict[str, list[float]]:
    """Return a number a request by status of its blocks, or by tier where bytes are counted."""
    found: list[Counter[str]] = []
    for each in receipts:
        counter: Counter[str] = Counter()
        for block in each["receipt"]["blocks"]:
            if unit == "bytes":
                if block.get("bytes"):
                    counter[block.get("tier") or "memory"] += block["bytes"]
            elif unit == "blocks":
                counter[block["status"]] += 1
            else:
                again = block.get("recomputed", 0)
                counter[block["status"]] += block["tokens"] - again
                counter["recomputed"] += again
        if unit == "tokens":
            counter["question"] += each["receipt"]["question"]
        found.append(counter)
    keys = dict.fromkeys(key for counter in found for key in counter)
    return {key: [float(counter[key]) for counter in found] for key in keys}
