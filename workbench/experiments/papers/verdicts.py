"""From a number of ours and what a paper claims to a verdict, by one rule: the 95% interval decides, never the eye.

A claim says that a number lies above a bar, below it, or equals it. The interval on the claimed side confirms it, the
interval on the other side contradicts it, and an interval that holds the bar decides nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

CONFIRMED, CONTRADICTED, UNREACHABLE = "confirmed", "contradicted", "unreachable"
VERDICTS = (CONFIRMED, CONTRADICTED, UNREACHABLE)
LABELS = ("real", "lab", "shape", "computed")  # real weights; the lab model; real shapes, random weights; no weights

Side = Literal["above", "below", "equals"]


@dataclass(frozen=True)
class Finding:
    """A number of ours beside the bar that a claim sets it.

    what     what was measured, in words
    value    with its 95% interval, or the 5th to 95th percentile of 20 timed runs or more (of fewer the
             range); three equal numbers where it is counted
    n        questions, prompts, runs or cases behind it
    form     how it is written: a format specification, with "points" for a hundredth or "x" for a ratio
    decides  False: shown beside the evidence that decides
    reached  False: measured of something smaller than what the paper prints a number of, so the claim stays open
    """

    what: str
    value: float
    low: float
    high: float
    n: int
    label: str
    side: Side
    bar: float
    form: str = ".3g"
    decides: bool = True
    reached: bool = True

    @property
    def verdict(self) -> str:
        """Whether the claim holds; UNREACHABLE where the interval holds the bar, or the claim speaks of more."""
        if not self.reached:
            return UNREACHABLE
        if self.side == "equals":
            return CONFIRMED if self.low == self.bar == self.high else CONTRADICTED
        if self.low > self.bar or self.high < self.bar:
            return CONFIRMED if (self.low > self.bar) == (self.side == "above") else CONTRADICTED
        return CONTRADICTED if self.low == self.high else UNREACHABLE

    @property
    def text(self) -> str:
        """The number with its interval and n, and the bar."""
        unit = " points" if self.form == "points" else ""
        ends = "" if self.low == self.high else f" [{self._form(self.low)}, {self._form(self.high)}]"
        side = {"above": "above", "below": "below", "equals": "exactly"}[self.side]
        bar = f"{self._form(self.bar)}{unit}" if self.bar else "0"
        return f"{self.what}: {self._form(self.value)}{unit}{ends}, n = {self.n:,}; claimed: {side} {bar}"

    def mirrored(self) -> "Finding":
        """Return the same finding on the other side of its bar."""
        return replace(
            self, value=2 * self.bar - self.value, low=2 * self.bar - self.high, high=2 * self.bar - self.low
        )

    def _form(self, value: float) -> str:
        if self.form == "points":
            return f"{100 * value:+z.1f}"
        return f"{value:.2f}×" if self.form == "x" else f"{value:{self.form}}"


Findings = list[Finding]


def judge(findings: Sequence[Finding]) -> str:
    """Return the verdict of an item: one contradiction contradicts it, and all that decides must confirm it."""
    found = {finding.verdict for finding in findings if finding.decides}
    if CONTRADICTED in found:
        return CONTRADICTED
    return CONFIRMED if found == {CONFIRMED} else UNREACHABLE


def leading(first: Findings, others: Findings) -> Findings:
    """Let `first` decide where there is any, with `others` shown beside it; else `others` decide."""
    return [*first, *(replace(finding, decides=not first) for finding in others)]


@dataclass(frozen=True)
class Item:
    """A numbered table or figure of a paper.

    key        "fusionrag-fig-16", as cells name what they answer
    claim      what it claims, in one sentence
    published  its numbers as printed
    find       measures ours from committed results; None: nothing of ours stands beside it
    missing    what is out of reach, and why, or a function that says so; needed where `find` finds nothing
    """

    key: str
    claim: str
    published: str = ""
    find: Callable[[], Findings] | None = None
    missing: str | Callable[[], str] = ""

    @property
    def lacking(self) -> str:
        """What is out of reach, and why."""
        return self.missing if isinstance(self.missing, str) else self.missing()

    @property
    def paper(self) -> str:
        """The first word of the key."""
        return self.key.split("-")[0]

    @property
    def name(self) -> str:
        """As the paper calls it: "Figure 16"."""
        _, kind, number = self.key.split("-")
        return f"{'Figure' if kind == 'fig' else 'Table'} {number}"


def item_of(
    paper: str,
    key: str,
    claim: str,
    published: str = "",
    find: Callable[[], Findings] | None = None,
    missing: str | Callable[[], str] = "",
) -> Item:
    """Return the item `key` ("fig-1") of a paper."""
    return Item(f"{paper}-{key}", claim, published, find, missing)
