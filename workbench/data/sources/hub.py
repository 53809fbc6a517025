"""Data sets of Hugging Face's hub, `hf:NAME[:SPLIT[:CONFIG]]`, read by `datasets`: from its cache first."""

from importlib.util import find_spec
from typing import Any

from workbench.core.errors import BadInput, brief, shown
from workbench.data.sample import Sample
from workbench.data.sources import given

PREFIX = "hf:"
SPLITS = ("validation", "test", "train")  # the first one there is, where none is named


def samples(name: str, answered: bool = True) -> list[Sample]:
    """Return the samples of a data set. BadInput without `datasets`, and for what it does not find or cannot read."""
    place, _, rest = name.removeprefix(PREFIX).partition(":")
    split, _, config = rest.partition(":")
    if not place:
        raise BadInput(f"data {shown(name)}: hf:NAME, hf:NAME:SPLIT or hf:NAME:SPLIT:CONFIG is needed")
    if find_spec("datasets") is None:
        raise BadInput(f"data {shown(name)} needs the package datasets: pip install datasets")
    import datasets

    try:
        found: Any = datasets.load_dataset(place, config or None)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as problem:  # network, Hub, builders
        raise BadInput(f"data {shown(name)} cannot be loaded: {brief(problem)}") from None
    chosen = split or next((each for each in SPLITS if each in found), "")
    if chosen not in found:
        raise BadInput(f"data {shown(name)} has no split {shown(chosen)}: allowed are {', '.join(map(str, found))}")
    return given.samples(found[chosen], answered)
