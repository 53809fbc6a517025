"""Committed results of data/benchmarks/deviation.py: deviation.json of the lab, deviation-MODEL-DATA.json of others.

Whatever files there are, are read; a number that a file lacks is left out.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from workbench.experiments import results

LAB = "deviation"  # the file of the lab model


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
    """Read every file: the lab model first, then others by name. Raises BadInput for a half-written one."""
    names = [name for name in results.names() if name == LAB or name.startswith(f"{LAB}-")]
    return [_read(name) for name in sorted(names)]


def _read(name: str) -> Deviations:
    content = results.read(name)
    numbers = content.pop("measured")
    return Deviations(content["model"], content["data"], numbers, content)


def by_name(measured: Iterable[Deviations], name: str) -> Iterator[tuple[Deviations, Mapping[str, Any]]]:
    """Yield a number of every file that has it."""
    for each in measured:
        if name in each.numbers:
            yield each, each.numbers[name]
