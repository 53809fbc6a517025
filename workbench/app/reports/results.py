"""A report of a reader's own results: which notebooks draw results, and the model and data that these are about."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from workbench import models
from workbench import results as tables
from workbench.app.notebooks.run import declared
from workbench.core.errors import BadInput
from workbench.results import SHIPPED

PARAMETER = "results"


def takes_results(notebooks: Sequence[Path]) -> list[Path]:
    """Return the notebooks that have a parameter `results`. Raises BadInput where none has."""
    chosen = [path for path in notebooks if PARAMETER in declared(path)]
    if not chosen:
        raise BadInput(f"none of {len(notebooks)} notebooks has a parameter {PARAMETER!r}")
    return chosen


def parameters_of(places: Sequence[str]) -> dict[str, Any]:
    """Return the parameters of notebooks for results of these places: {results}, and {model, data} where they are one.

    Folders are given by name and whole path, because a notebook runs in a folder of its own. Raises BadInput for a
    place without results.
    """
    found = tables.read(places)
    given: dict[str, Any] = {PARAMETER: [_whole(place) for place in places]}
    own = found.counts("trial")
    own = own[own.source != SHIPPED]
    for name in ("model", "data"):
        known = [value for value in own[name].unique() if value]
        if len(known) == 1 and (name == "data" or _is_there(known[0])):
            given[name] = str(Path(known[0]).resolve()) if Path(known[0]).exists() else known[0]
    return given


def _whole(place: str) -> str:
    if place == SHIPPED:
        return place
    name, equals, folder = place.partition("=")
    return f"{name}={Path(folder if equals else place).resolve()}"


def _is_there(model: str) -> bool:
    try:
        models.folder(model)
    except BadInput:
        return False
    return True
