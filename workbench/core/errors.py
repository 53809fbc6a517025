"""The error that wrong input raises, and how values are quoted in its message."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

LONGEST = 160  # characters of a value in a message
SHOWN = "\n\t\u00a0\u200c\u200d\u3000"  # harmless, though not printable to Python: spaces and joiners


class BadInput(ValueError):
    """Input that is refused before any work is done; its message names the value and what is allowed."""


class Unsupported(BadInput, NotImplementedError):
    """A model that the workbench cannot use; its message names the model and the reason."""


def shown(value: Any) -> str:
    """Return a value for an error message: its `repr` on one line, cut to 160 characters."""
    try:
        text = repr(value)
    except ValueError:  # an integer with more digits than Python converts
        return f"a {type(value).__name__} of {value.bit_length():,} bits"
    return brief(text)


def kind_of(value: Any) -> str:
    """Return a value for an error message: a text, number or None itself, the type of anything else."""
    return shown(value) if isinstance(value, str | int | float | None) else f"of type {type(value).__name__}"


def not_allowed(what: str, value: Any, allowed: Iterable[Any]) -> BadInput:
    """Return (not raise) the error "unknown <what> <value>: allowed are a, b; did you mean 'a'?"."""
    known = [str(one) for one in allowed]
    return BadInput(f"unknown {what} {shown(value)}: allowed are {', '.join(known)}{meant(value, known)}")


def meant(value: Any, known: Iterable[str]) -> str:
    """Return "; did you mean 'a'?" for the known name most like the value; "" if none is similar."""
    near = get_close_matches(value, list(known), 1) if isinstance(value, str) and len(value) <= LONGEST else []
    return f"; did you mean {near[0]!r}?" if near else ""


def brief(text: Any) -> str:
    """Return a text or a path on one line, cut to 160 characters."""
    text = printable(str(text).replace("\r", r"\r").replace("\n", r"\n"))
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def printable(text: str) -> str:
    """Return a text with control characters escaped, as \\x1b or \\u202e; line breaks and tabs stay."""
    if text.isprintable():
        return text
    return "".join(x if x.isprintable() or x in SHOWN else x.encode("unicode_escape").decode() for x in text)


def first_line(problem: Exception) -> str:
    """Return the first line of an error's message; the name of its class if the message is empty."""
    return next(iter(str(problem).splitlines()), type(problem).__name__)
