"""Shipped results of data/benchmarks/deviation.py, by model and data set; what was not measured is left out."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from workbench.results import read


@dataclass(frozen=True)
class Deviations:
    """What was measured of a model on a data set: `numbers` by name, {value, low, high, n} each; `about` the rest."""

    model: str
    data: str
    numbers: Mapping[str, Mapping[str, Any]]
    about: Mapping[str, Any]

    @property
    def where(self) -> str:
        """Name model and data: "smollm2 on nq"."""
        return f"{self.model} on {self.data}"

    @property
    def is_real(self) -> bool:
        """Whether it was measured on real text, not on the lab's facts."""
        return self.data != "lab"

    @property
    def n(self) -> int:
        """Questions; 0 where nothing was measured."""
        return max((int(number["n"]) for number in self.numbers.values()), default=0)


def kept() -> list[Deviations]:
    """Read what ships: the lab model first, then others by name."""
    rows = read("shipped").counts("deviation")
    rows = rows[rows.model != ""]
    found = []
    for (model, data), own in rows.groupby(["model", "data"]):
        numbers = {
            _name(row): {key: row[key] for key in ("value", "low", "high", "n")} for row in own.to_dict("records")
        }
        about = own.iloc[0][["seed", "passages", "device"]].to_dict()
        found.append(Deviations(str(model), str(data), numbers, about))
    return sorted(found, key=lambda one: (one.is_real, one.where))


def _name(row: Mapping[str, Any]) -> str:
    """Return the name of a number: its measure, and the selectors that it is of."""
    who = {"kv_deviation": "CacheBlend", "query_guided": "query-guided", "answer_guided": "answer-guided"}
    if row["measure"] == "together":
        return f"together_{row['at']:.0f}"
    if not row["select"]:
        return str(row["measure"])
    of = who.get(row["select"], row["select"]) + (f" and {who.get(row['kind'], row['kind'])}" if row["kind"] else "")
    return f"{of}: {row['measure'].replace('_', ' ')}"


def by_name(measured: Iterable[Deviations], name: str) -> Iterator[tuple[Deviations, Mapping[str, Any]]]:
    """Yield a number of every file that has it."""
    for each in measured:
        if name in each.numbers:
            yield each, each.numbers[name]
