"""What causes the deviation of cached keys and values, and what recomputing tokens repairs."""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
import torch

from workbench.metrics.kv.kv_deviation import CAUSES, Repair, mean_causes
from workbench.metrics.kv.selection import summary
from workbench.plots.kv.deviation import Records
from workbench.plots.marks.line_styles import selector_looks
from workbench.plots.marks.lines import profile, profiles
from workbench.plots.marks.styles import SELECTORS
from workbench.plots.marks.theme import BLUE, GREEN, RED

PARTS = {  # field of `Repair` → title
    "context": "left in the context",
    "chosen": "left in the recomputed tokens",
    "asked": "left in the question",
}


def what_causes_it(records: Sequence[dict[str, Any]], *, about: str) -> go.Figure:
    """Draw the relative error of keys and values by layer and cause: `records` as of `cause_records`."""
    means = mean_causes(records).query("mean > 1e-5").to_dict("records")
    prompts = len({r["prompt"] for r in records})
    parts = {part: [r for r in means if r["part"] == part] for part in ("keys", "values")}
    titles = {"keys": "relative L2 error", "values": ""}
    return profiles(
        [profile(part, points, "layer", titles[part], log=True) for part, points in parts.items()],
        title="What the deviation is made of",
        caption=f"Relative L2 error per token and head, mean over the passages behind the first of {prompts} prompts; "
        f"what is below 10⁻⁵ (fp32 rounding) is not drawn. {about}.",
        colours=dict(zip(CAUSES.values(), (RED, BLUE, GREEN), strict=True)),
        share=True,
        symbols={CAUSES["position"]: "diamond", CAUSES["precision"]: "square"},
    )


def repair_records(repairs: Mapping[str, Sequence[Repair]]) -> list[dict[str, Any]]:
    """Return the share of the deviation that is left, mean over prompts.

    Records {name, at (layer from 1), mean, low, high, n, selector, part}.
    """
    records = []
    for spec, measured in repairs.items():
        for part in PARTS:
            left = torch.stack([getattr(each, part) for each in measured]).cpu().numpy()[:, 1:]
            layers = range(1, left.shape[1] + 1)
            of = {"selector": spec, "part": part}
            records += [record | of for record in summary(left, SELECTORS.name_of(spec), layers)]
    return records


def left_in_last_layer(records: Records) -> dict[tuple[str, str], float]:
    """Return the share that is left in the last layer, by selector and part."""
    last = max(record["at"] for record in records)
    return {(record["selector"], record["part"]): record["mean"] for record in records if record["at"] == last}


def what_is_repaired(records: Records, *, ratio: float, prompts: int, about: str) -> go.Figure:
    """Draw what recomputing `ratio` of the tokens leaves of the deviation: `records` as of `repair_records`."""
    selectors = list(dict.fromkeys(record["selector"] for record in records))
    by = {title: [r for r in records if r["part"] == part] for part, title in PARTS.items()}
    return profiles(
        [profile(title, points, "layer", percent=True) for title, points in by.items()],
        title=f"What recomputing {ratio:.0%} of the tokens repairs",
        caption=f"Share of the squared deviation from full attention that is left; mean over {prompts} prompts and 95% "
        f"bootstrap interval; passages cached behind the system prompt. {about}.",
        share=True,
        **selector_looks(selectors),
    )


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
