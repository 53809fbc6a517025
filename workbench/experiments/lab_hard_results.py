"""Results on the harder lab over training seeds, as data/benchmarks/lab_hard.sh leaves them in a folder.

SIZE-SEED.json holds scores by setting and kind of question; SIZE-SEED-TITLES-PREPARATION.json is the record of a trial,
and shipped-SIZE-MODE.json that of the seed which is shipped, its weights in 8 bits.
Whatever files there are, are read; a folder that is missing holds none.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from workbench.experiments import results
from workbench.metrics.answers import Records

SCORES = re.compile(r"(?P<size>.+)-(?P<seed>\d+)")
TRIALS = re.compile(r"(?P<size>.+)-(?P<seed>\d+)-(?P<titles>kept|continued)-(?P<prepare>\w+.*)")


def folder() -> Path:
    """Return the folder of the results."""
    return Path(results.FOLDER) / "lab-hard"


def scores() -> Records:
    """Return rows {size, seed, setting, kind, n, em}; none where nothing was scored."""
    rows = []
    for about, content in _matching(SCORES):
        for setting, kinds in content.items():
            if isinstance(kinds, Mapping) and "all" in kinds:
                rows += [
                    {**about, "setting": setting, "kind": kind, "n": of["n"], "em": of["em"]}
                    for kind, of in kinds.items()
                ]
    return rows


def preparations() -> Records:
    """Return rows {size, seed, titles, prepare, kind, n, em} of the trials; none where nothing was measured."""
    rows = []
    for about, record in _matching(TRIALS):
        kinds = {"all": record, **record.get("by_kind", {})}
        rows += [{**about, "kind": kind, "n": of["n"], "em": of["em"]} for kind, of in kinds.items()]
    return rows


def _matching(pattern: re.Pattern[str]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for path in sorted(folder().glob("*.json")):
        if found := pattern.fullmatch(path.stem):
            about = {**found.groupdict(), "seed": int(found["seed"])}
            yield about, results.read_json(path)


def by_seed(size: str) -> dict[int, dict[str, Any]]:
    """Return the scores of every training seed of a size, as they were written."""
    return {about["seed"]: content for about, content in _matching(SCORES) if about["size"] == size}


def shipped(size: str, modes: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the records of the shipped model of a size by mode. BadInput where one is not measured."""
    return {mode: results.read(f"lab-hard/shipped-{size}-{mode}") for mode in modes}


def sizes(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """List the sizes of models, each once, the smaller first where their names say which."""
    order = ("small", "large")
    names = dict.fromkeys(row["size"] for row in rows)
    return sorted(names, key=lambda name: next((i for i, word in enumerate(order) if name.endswith(word)), len(order)))


def shares(rows: Iterable[Mapping[str, Any]], **chosen: Any) -> tuple[list[float], int]:
    """Return exact match by training seed where all of `chosen` holds, in the order of seeds, and the least n."""
    own = [row for row in rows if all(row[name] == value for name, value in chosen.items())]
    by_seed = {row["seed"]: row for row in own}
    return [by_seed[seed]["em"] for seed in sorted(by_seed)], min((row["n"] for row in own), default=0)
