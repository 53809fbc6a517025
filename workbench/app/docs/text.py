"""Docstrings as reStructuredText, for Sphinx's autodoc, and tables as Markdown, for the pages of the documentation.

A docstring of this house is plain text: paragraphs, lists of names with their meaning two spaces behind, examples
indented by four spaces, and formulas between dollar signs where it is a raw string.
"""

import re
from collections.abc import Iterable, Sequence
from inspect import cleandoc

ITEM = re.compile(r"^([^\s].*?) {2,}(\S.*)$")
CODE = re.compile(r"(`[^`\n]+`)")
MATH = re.compile(r"(`[^`\n]+`|\$[^$\n]+\$)")
SIGNS = {"rst": re.compile(r"([\\*_|`])"), "md": re.compile(r"([\\*_\[\]{}<>$|#~])")}
ARXIV = re.compile(r"arXiv:(\d{4}\.\d{4,5})")


def rst(docstring: str) -> list[str]:
    """Return the lines of a docstring; what is no formula, code or list in it is text."""
    text = cleandoc(docstring)
    has_math = "$$" in text
    return "\n\n".join(_paragraph(part, has_math) for part in re.split(r"\n\s*\n", text) if part.strip()).split("\n")


def _paragraph(part: str, has_math: bool) -> str:
    lines = part.rstrip().splitlines()
    if has_math and part.lstrip().startswith("$$"):
        return _block("math::", [line.strip() for line in part.replace("$$", "").strip().splitlines()])
    if all(line.startswith("    ") for line in lines):
        return _block("code-block:: text", [line[4:] for line in lines])
    if ITEM.match(lines[0]):
        return _items(lines, has_math)
    return _text(" ".join(line.strip() for line in lines), has_math)


def _block(directive: str, lines: Sequence[str]) -> str:
    return "\n".join([f".. {directive}", "", *(f"   {line}" for line in lines)])


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
    return "\n".join(f"- {_text(name, has_math)}: {_text(text, has_math)}".rstrip(": ") for name, text in items)


def _text(text: str, has_math: bool) -> str:
    parts = (MATH if has_math else CODE).split(text)
    return "".join(_marked(part) if i % 2 else SIGNS["rst"].sub(r"\\\1", part) for i, part in enumerate(parts))


def _marked(part: str) -> str:
    """Return code or a formula; what stands beside it may touch it."""
    role, text = ("math", part.strip("$")) if part[0] == "$" else ("code", part.strip("` ").replace("\\", "\\\\"))
    return rf"\ :{role}:`{text}`\ "


def escaped(text: str) -> str:
    """Return text with the signs of Markdown disarmed, but for code; papers are linked."""
    said = [part if i % 2 else SIGNS["md"].sub(r"\\\1", part) for i, part in enumerate(CODE.split(text))]
    return ARXIV.sub(r"[arXiv:\1](https://arxiv.org/abs/\1)", "".join(said))


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table; cells are Markdown already."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in line)} |" for line in lines)
