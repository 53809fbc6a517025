"""A board: methods on the same questions, ranked, with full attention beside them."""

from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd

from workbench.experiments.leaderboard.standings import Standing
from workbench.metrics.paired import Ranks

COSTS = ("charged", "ttft_ms", "speedup", "storage_mb", "front", "n")  # columns of `Board.table` behind the scores


@dataclass(frozen=True)
class Board:
    """Methods on the same questions, ranked.

    by          the measure that ranks
    entries     the ranked methods
    full        full attention
    over        methods over the budget
    together    groups of methods, by name, that these questions do not distinguish
    unmet       the largest requested budget, if too few methods keep it; methods are then ranked at what they charge
    run         training seed of the model
    timed       what speedups were timed on, "" if unknown
    unmeasured  methods that are not ranked, as they lack the measure
    """

    source: str
    model: str
    data: str
    by: str
    budget: float | None
    device: str
    n: int
    entries: tuple[Standing, ...]
    full: Standing | None
    over: tuple[Standing, ...]
    ranks: Ranks
    together: tuple[tuple[str, ...], ...]
    unmet: float | None = None
    passages: int | None = None
    run: int | None = None
    timed: str = ""
    unmeasured: tuple[str, ...] = ()

    def __repr__(self) -> str:
        best = f", best {self.entries[0].method!r}" if self.entries else ""
        return f"Board({self.title}: {len(self.entries)} methods by {self.by}{best})"

    @property
    def title(self) -> str:
        """Title with model, data and budget."""
        within = "" if self.budget is None else f", at most {self.budget:.0%} charged"
        return f"{self.model} on {self.data}{within}"

    @property
    def budget_note(self) -> str:
        """Sentence that the budget could not be kept, and how methods are ranked instead; "" if it could."""
        least = min((e.charged for e in self.entries if e.charged), default=None)
        if self.unmet is None:
            return ""
        if least is None:
            return f"what these trials charge is not known, so no budget of {self.unmet:.0%} applies: all are ranked"
        few = f"no two methods keep a budget of {self.unmet:.0%} on these prompts (the cheapest computes {least:.0%})"
        return f"{few}: all are ranked, each at what it charges"

    @property
    def table(self) -> pd.DataFrame:
        """Table with a row a method, full attention first: rank, scores with 95% intervals, costs."""
        rows = []
        for one in filter(None, (self.full, *self.entries, *self.over)):
            row: dict[str, Any] = {"method": one.method, "rank": one.rank}
            for name, (value, low, high) in one.scores.items():
                row |= {name: value, f"{name}_low": low, f"{name}_high": high}
            rows.append(row | {name: getattr(one, name) for name in COSTS})
        return pd.DataFrame(rows)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        about = asdict(self) | {"title": self.title}
        tests = about.pop("ranks") | {"p": [[*pair, p] for pair, p in self.ranks.p.items()]}
        return about | {"ranks": tests}
