"""Sizes as a person writes them."""

from workbench.core.errors import BadInput


def bytes_of(text: str) -> int:
    """Return a number of bytes: `10GB`, `1.5 TiB`, `4096`. Raises BadInput."""
    units = {"": 1, "b": 1} | {f"{letter}b": 1000**i for i, letter in enumerate("kmgt", 1)}
    units |= {f"{letter}ib": 1024**i for i, letter in enumerate("kmgt", 1)}
    digits = text.strip().rstrip("KMGTBkmgtib ")
    unit = text.strip()[len(digits) :].strip().lower()
    try:
        return int(float(digits) * units[unit])
    except (ValueError, KeyError, OverflowError):
        raise BadInput(f"{text!r} is no size: a number with {', '.join(list(units)[2:])} is needed, as 10GB") from None
