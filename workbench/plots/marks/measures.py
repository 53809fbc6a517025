"""What a score is called on an axis, which way is better, and how its values are written."""

from dataclasses import dataclass

import pandas as pd

from workbench.core.errors import BadInput, not_allowed


@dataclass(frozen=True)
class Measure:
    """A score of a sweep's table: column `name`, with {name}_low and {name}_high."""

    name: str
    words: str
    better: str = "higher"
    percent: bool = False  # a share; else nats a token
    interval: str = "bootstrap"

    @property
    def axis(self) -> str:
        """Title of an axis; it says the way where lower is better."""
        return self.words if self.better == "higher" else f"{self.words} (lower is better)"

    def say(self, value: float, digits: int = 1) -> str:
        """Write one value: a share with so many digits, nats with three that count."""
        return f"{value:.{digits}%}" if self.percent else f"{value:.3g}"


LOST = "of what reuse loses"
MEASURES = {
    measure.name: measure
    for measure in (
        Measure("em", "exact match", percent=True, interval="Wilson"),
        Measure("f1", "F1", percent=True),
        Measure("contains", "answers that hold an alias", percent=True, interval="Wilson"),
        Measure("nll", "negative log-likelihood of the gold answer, nats a token", "lower"),
        Measure("nll_extra", "likelihood of the gold answer lost, nats a token", "lower"),
        Measure("kl", "KL from full attention, nats a token", "lower"),
        Measure("kl_first", "KL from full attention, first token, nats", "lower"),
        Measure("agree", "tokens that agree with full attention", percent=True),
        Measure("agree_first", "first tokens that agree with full attention", percent=True),
        Measure("nll_explained", f"bits of the gold answer explained, share {LOST}", percent=True),
        Measure("kl_explained", f"bits of KL explained, share {LOST}", percent=True),
    )
}


def measure_of(name: str, table: pd.DataFrame) -> Measure:
    """Return a measure by its column. Raises BadInput for an unknown one, and for one that the table lacks."""
    if name not in MEASURES:
        raise not_allowed("metric", name, MEASURES)
    columns = [name, f"{name}_low", f"{name}_high"]
    if not set(columns) <= set(table.columns) or not table[name].notna().any():
        raise BadInput(f"the table has no metric {name!r}: its trials were run without it")
    return MEASURES[name]
