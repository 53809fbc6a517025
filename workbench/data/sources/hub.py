"""Data sets that the package `datasets` finds, in its cache or on the Hub: `hf:NAME`, `hf:NAME:SPLIT[:CONFIG]`."""

from functools import cache
from importlib.util import find_spec
from typing import Any

from workbench.core.errors import BadInput, format_value, shorten
from workbench.data.sample import Sample
from workbench.data.sources import files

HUB = "hf:"
SPLITS = ("validation", "test", "train")  # the default is the first that exists


def samples(name: str, answered: bool = True) -> list[Sample]:
    """Return the samples of `hf:NAME[:SPLIT[:CONFIG]]`.

    Raises BadInput without the package `datasets`, and for what it does not find or cannot read.
    """
    place, _, rest = name.removeprefix(HUB).partition(":")
    split, _, config = rest.partition(":")
    if not place:
        raise BadInput(f"data {format_value(name)}: hf:NAME, hf:NAME:SPLIT or hf:NAME:SPLIT:CONFIG is needed")
    if find_spec("datasets") is None:
        raise BadInput(f"data {format_value(name)} needs the package datasets: pip install datasets")
    import datasets

    try:
        found = _found(place, config)
    except ConnectionError:
        known = datasets.config
        asked = "is not asked while HF_HUB_OFFLINE is set" if known.HF_HUB_OFFLINE else "cannot be reached"
        remedy = "run this once where it can be, then copy that folder"
        where = shorten(known.HF_DATASETS_CACHE)
        raise BadInput(f"data {format_value(name)} is not in {where}, and the Hub {asked}: {remedy}") from None
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as problem:  # network, Hub, builders
        told = shorten(" ".join(str(problem).split()))
        raise BadInput(f"data {format_value(name)} cannot be loaded: {told}") from None
    chosen = split or next((each for each in SPLITS if each in found), "")
    if chosen not in found:
        raise BadInput(
            f"data {format_value(name)} has no split {format_value(chosen)}: allowed are {', '.join(map(str, found))}"
        )
    return files.samples(found[chosen], answered)


@cache  # commands ask repeatedly, and `datasets` waits each time if the Hub does not answer
def _found(place: str, config: str) -> Any:
    import datasets

    return datasets.load_dataset(place, config or None)
