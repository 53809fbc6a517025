"""Specs of methods and corpora on the command line: `name` or `name(option=value, …)`.

A value is a Python literal, a word, another spec, or a path without blanks, commas, brackets and quotes. Other paths
must be quoted.
"""

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from workbench.core.errors import BadInput

NAME = r"[^\W\d][\w-]*"
PATH = r"[^\s,=()\[\]{}'\"]*[/\\~.][^\s,=()\[\]{}'\"]*"
CLOSES = {")": "(", "]": "[", "}": "{"}


def parse(spec: str) -> tuple[str, dict[str, Any]]:
    """Return name and options of `name` or `name(option=value, …)`. Raises BadInput for anything else.

    Names may contain hyphens: `needles-single`.
    """
    name, bracket, rest = (part.strip() for part in spec.strip().partition("("))
    if not re.fullmatch(NAME, name) or (bracket and not rest.endswith(")")):
        raise _refused(spec)
    options: dict[str, Any] = {}
    *parts, last = split(rest[:-1])
    for part in [*parts, last] if last else parts:
        option, equals, value = (each.strip() for each in part.partition("="))
        if not equals or not option.isidentifier() or option in options:
            raise _refused(spec)
        options[option] = _value(value, spec)
    return name, options


def split(text: str) -> list[str]:
    """Split a string at its commas, except those within brackets or quotes."""
    cuts = [-1, *_commas(text), len(text)]
    return [text[begin + 1 : end].strip() for begin, end in pairwise(cuts)]


def _commas(text: str) -> Iterator[int]:
    """Yield the positions of commas outside brackets and quotes; a quote opens only at the start of a value."""
    opened, quote, before = list[str](), "", ","
    for i, sign in enumerate(text):
        if quote:
            escaped = (i - len(text[:i].rstrip("\\"))) % 2
            quote = "" if sign == quote and not escaped else quote
        elif sign in "'\"" and before in ",=([{:":
            quote = sign
        elif sign in CLOSES.values():
            opened.append(sign)
        elif sign in CLOSES and opened and opened[-1] == CLOSES[sign]:
            opened.pop()
        elif sign == "," and not opened:
            yield i
        before = before if sign.isspace() else sign


def _value(text: str, spec: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        pass
    try:
        ast.parse(text, mode="eval")  # a word, a name with a slash, a spec
    except (ValueError, SyntaxError):
        if not re.fullmatch(PATH, text):
            raise _refused(spec) from None
    return text


def _refused(spec: str) -> BadInput:
    return BadInput(f"{spec!r} is not understood: it is a name or name(option=value, …)")
