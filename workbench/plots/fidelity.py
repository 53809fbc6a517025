"""How near full attention the predictions of trials stay, where right answers alone do not tell methods apart."""

from collections.abc import Mapping

import plotly.graph_objects as go

from workbench.experiments.record import Record
from workbench.plots.styles import MODE_NAMES
from workbench.plots.table import table


def beside_full(records: Mapping[str, Record], *, about: str) -> go.Figure:
    """Draw KL, likelihood lost and agreement of trials beside the trial "full", by mode; each has a `fidelity`."""
    others = {mode: record for mode, record in records.items() if mode != "full"}
    rows = [
        [
            MODE_NAMES.get(mode, mode),
            _within(record, "kl"),
            _within(record, "nll_extra"),
            _within(record, "agree"),
            _within(record, "em"),
        ]
        for mode, record in others.items()
    ]
    nearest = min(others, key=lambda mode: others[mode].kl or 0.0)
    return table(
        ["method", "KL", "likelihood lost", "tokens that agree", "exact match"],
        rows,
        widths=[2.4, 1.6, 1.7, 1.6, 1.6],
        title="How near full attention the predictions stay",
        notice=f"Full attention answers {_percent(records['full'].em)} exactly. Also where few answers are right, "
        f"predictions tell methods apart: {MODE_NAMES.get(nearest, nearest)} stays nearest to full attention.",
        caption=f"{about}. Nats a token over full attention's own answer (KL, agreement) and over the gold answer "
        f"(likelihood lost); 95% intervals. {records['full'].device}.",
    )


def _within(record: Record, score: str) -> str:
    value, low, high = (getattr(record, f"{score}{end}") for end in ("", "_low", "_high"))
    if value is None:
        return "–"
    return f"{value:.2f} [{low:.2f}, {high:.2f}]"


def _percent(share: float | None) -> str:
    return "no question" if share is None else f"{share:.0%}"
