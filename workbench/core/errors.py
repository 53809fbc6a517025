"""The one error a user's input can cause."""

from collections.abc import Iterable
from typing import Any

LONGEST = 160  # characters of a value in a sentence


class BadInput(ValueError):
    """One sentence that names the value and what is allowed; raised before any work is done."""


class Unsupported(BadInput, NotImplementedError):
    """A model that cannot be used here: one sentence that names it and the reason."""


def shown(value: Any) -> str:
    """Return a value as a sentence quotes it: its `repr`, cut where it is long."""
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python writes
        return f"a {type(value).__name__} of {value.bit_length():,} bits"
    return brief(text)


def not_allowed(what: str, value: Any, allowed: Iterable[Any]) -> BadInput:
    """Return the error, not raised: unknown <what> <value>: allowed are a, b and so on."""
    return BadInput(f"unknown {what} {shown(value)}: allowed are {', '.join(map(str, allowed))}")


def brief(text: Any) -> str:
    """Return a text, or a path, on one line, cut where it is long."""
    text = str(text).replace("\r", r"\r").replace("\n", r"\n")
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
