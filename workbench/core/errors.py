"""The error for invalid input, and formatting of values in its message."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

LONGEST = 160  # characters of a value in a message
SHOWN = "\n\t\u00a0\u200c\u200d\u3000"  # spaces and joiners that Python considers unprintable


class BadInput(ValueError):
    """Input that is rejected before any work; the message names the value and what is allowed."""


class Unsupported(BadInput, NotImplementedError):
    """A model that the workbench cannot use; the message names the model and the reason."""


def format_value(value: Any) -> str:
    """Format a value for an error message: its `repr` on one line, cut to 160 characters."""
    try:
        text = repr(value)
    except ValueError:  # an integer with more digits than Python converts
        return f"a {type(value).__name__} of {value.bit_length():,} bits"
    return shorten(text)


def kind_of(value: Any) -> str:
    """Format a value for an error message: strings, numbers and None as they are shown, others by type."""
    return format_value(value) if isinstance(value, str | int | float | None) else f"of type {type(value).__name__}"


def not_allowed(what: str, value: Any, allowed: Iterable[Any]) -> BadInput:
    """Return the error "unknown <what> <value>: allowed are a, b; did you mean 'a'?", without raising it."""
    known = [str(one) for one in allowed]
    return BadInput(f"unknown {what} {format_value(value)}: allowed are {', '.join(known)}{did_you_mean(value, known)}")


def did_you_mean(value: Any, known: Iterable[str]) -> str:
    """Return "; did you mean 'a'?" for the most similar known name; "" if none is similar."""
    near = get_close_matches(value, list(known), 1) if isinstance(value, str) and len(value) <= LONGEST else []
    return f"; did you mean {near[0]!r}?" if near else ""


def shorten(text: Any) -> str:
    """Return a string or a path on one line, cut to 160 characters."""
    text = printable(str(text).replace("\r", r"\r").replace("\n", r"\n"))
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def printable(text: str) -> str:
    """Escape control characters in a string, as \\x1b or \\u202e, except line breaks and tabs."""
    if text.isprintable():
        return text
    return "".join(x if x.isprintable() or x in SHOWN else x.encode("unicode_escape").decode() for x in text)


def first_line(problem: Exception) -> str:
    """Return the first line of an error's message, or its class name if the message is empty."""
    return next(iter(str(problem).splitlines()), type(problem).__name__)
