"""Docstrings and tables as MyST Markdown, for the pages of the documentation.

A docstring of this house is plain text: paragraphs, lists of names with their meaning two spaces behind, examples
indented by four spaces, and formulas between dollar signs where it is a raw string.
"""

import re
from collections.abc import Iterable, Sequence
from inspect import cleandoc

ITEM = re.compile(r"^([^\s].*?) {2,}(\S.*)$")
CODE = re.compile(r"(`[^`\n]+`)")
MATH = re.compile(r"(`[^`\n]+`|\$[^$\n]+\$)")
SIGNS = re.compile(r"([\\*_\[\]{}<>$|#~])")
ARXIV = re.compile(r"arXiv:(\d{4}\.\d{4,5})")


def markdown(docstring: str) -> str:
    """Return a docstring as Markdown; what is no formula, code or list in it is text."""
    text = cleandoc(docstring)
    has_math = "$$" in text
    return "\n\n".join(_paragraph(part, has_math) for part in re.split(r"\n\s*\n", text) if part.strip())


def _paragraph(part: str, has_math: bool) -> str:
    lines = part.rstrip().splitlines()
    if has_math and part.lstrip().startswith("$$"):
        return "\n".join(line.strip() for line in lines)
    if all(line.startswith("    ") for line in lines):
        body = "\n".join(line[4:] for line in lines)
        return f"```text\n{body}\n```"
    if ITEM.match(lines[0]):
        return _items(lines, has_math)
    return escaped(" ".join(line.strip() for line in lines), has_math)


def _items(lines: Sequence[str], has_math: bool) -> str:
    """Return a list of names with what they mean."""
    items: list[list[str]] = []
    for line in lines:
        if found := ITEM.match(line):
            items.append([found[1], found[2]])
        elif line.startswith(" ") or not items[-1][1]:
            items[-1][1] += f" {line.strip()}"
        else:
            items.append([line.strip(), ""])
    return "\n".join(f"- **{escaped(name, has_math)}**: {escaped(text, has_math)}".rstrip(": ") for name, text in items)


def escaped(text: str, has_math: bool = False) -> str:
    """Return text with the signs of Markdown disarmed, but for code and, with `has_math`, formulas; papers linked."""
    parts = (MATH if has_math else CODE).split(text)
    said = [part if i % 2 else SIGNS.sub(r"\\\1", part) for i, part in enumerate(parts)]
    return ARXIV.sub(r"[arXiv:\1](https://arxiv.org/abs/\1)", "".join(said))


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table; cells are Markdown already."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in line)} |" for line in lines)
