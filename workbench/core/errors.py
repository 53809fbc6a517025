"""The one error a user's input can cause."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

LONGEST = 160  # characters of a value in a sentence
SHOWN = "\n\t\u00a0\u200c\u200d\u3000"  # harmless for all that Python calls them not printable: spaces and joiners


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


def kind_of(value: Any) -> str:
    """Return what a value is, for a sentence: a plain one itself, of anything else its type."""
    return shown(value) if isinstance(value, str | int | float | None) else f"of type {type(value).__name__}"


def not_allowed(what: str, value: Any, allowed: Iterable[Any]) -> BadInput:
    """Return the error, not raised: unknown <what> <value>: allowed are a, b and so on; did you mean a?"""
    known = [str(one) for one in allowed]
    return BadInput(f"unknown {what} {shown(value)}: allowed are {', '.join(known)}{meant(value, known)}")


def meant(value: Any, known: Iterable[str]) -> str:
    """Return "; did you mean 'a'?" for the known name that is nearest to a value; "" where none is near."""
    near = get_close_matches(value, list(known), 1) if isinstance(value, str) and len(value) <= LONGEST else []
    return f"; did you mean {near[0]!r}?" if near else ""


def brief(text: Any) -> str:
    """Return a text, or a path, on one line, cut where it is long."""
    text = printable(str(text).replace("\r", r"\r").replace("\n", r"\n"))
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def printable(text: str) -> str:
    """Return a text with what moves a terminal's cursor or turns its writing around as \\x1b or \\u202e; lines stay."""
    if text.isprintable():
        return text
    return "".join(x if x.isprintable() or x in SHOWN else x.encode("unicode_escape").decode() for x in text)


def first_line(problem: Exception) -> str:
    """Return the first line of an error's message, or the name of its class."""
    return next(iter(str(problem).splitlines()), type(problem).__name__)
