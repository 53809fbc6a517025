"""Scores by their columns in result tables: names and number formats."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Measure:
    """A score: column `name` of result tables, with {name}_low and {name}_high.

    `label` names it in a terminal, `short` in a narrow column.
    """

    name: str
    words: str
    label: str = ""
    short: str = ""
    better: str = "higher"
    percent: bool = False  #: a share; else nats a token
    form: str = ".3f"  #: format of values other than shares
    interval: str = "bootstrap"

    @property
    def axis(self) -> str:
        """Axis title; it says if lower is better."""
        return self.words if self.better == "higher" else f"{self.words} (lower is better)"

    @property
    def unit(self) -> str:
        """Unit of a difference: " points" for shares, "" for nats."""
        return " points" if self.percent else ""

    def format_value(self, value: float | None) -> str:
        """Format a value: shares in percent, nats with three decimals; a dash if it was not measured."""
        if value is None or value != value:
            return "–"
        return f"{value:z.1%}" if self.percent else f"{value:z{self.form}}"

    def say_gap(self, value: float) -> str:
        """Format a difference with its sign, without its unit."""
        return signed(value * 100, "+.1f") if self.percent else signed(value, f"+{self.form}")

    def ends(self, low: float, high: float, gap: bool = False) -> str:
        """Format the ends of an interval; `gap`: of a difference."""
        write = self.say_gap if gap else self.format_value
        return f"{write(low)} to {write(high)}"


def signed(value: float, form: str) -> str:
    """Format a number with its sign; a number that rounds to 0 has none."""
    text = f"{value:{form}}"
    return text if float(text) else text.lstrip("+-")


LOST = "of what reuse loses"
MEASURES = {
    measure.name: measure
    for measure in (
        Measure("em", "exact match", "exact match", "EM", percent=True, interval="Wilson"),
        Measure("f1", "F1", "F1", "F1", percent=True),
        Measure(
            "contains",
            "answers that contain an alias",
            "contains an alias",
            "contains",
            percent=True,
            interval="Wilson",
        ),
        Measure(
            "nll", "negative log-likelihood of the gold answer, nats a token", "gold answer's loss", "gold nll", "lower"
        ),
        Measure(
            "nll_extra", "likelihood of the gold answer lost, nats a token", "gold answer's loss added", better="lower"
        ),
        Measure("kl", "KL from full attention, nats a token", "KL, nats a token", "KL", "lower"),
        Measure("kl_first", "KL from full attention, first token, nats", "KL, first token", "KL first", "lower"),
        Measure("agree", "tokens that agree with full attention", "tokens that agree", "agree", percent=True),
        Measure(
            "agree_first",
            "first tokens that agree with full attention",
            "first tokens that agree",
            "agree first",
            percent=True,
        ),
        Measure("nll_explained", f"bits of the gold answer explained, share {LOST}", percent=True),
        Measure("kl_explained", f"bits of KL explained, share {LOST}", percent=True),
    )
}
