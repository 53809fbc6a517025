"""Sentences that claim much (exactly, never, always, best, all, no, …), each with the evidence that it rests on.

python -m tests.sentences       prints them beside their evidence, and what is wrong; exit code 1 where something is

Searched for `STRONG` words: README, ARCHITECTURE, docs, data's pages, notebooks' Markdown, and the docstrings of the
library and its kernels. `all` and `no` count where they say something of every case, which a rule has to tell from
ordinary quantities: on pages, outside tables, every `no`, and `all` at the head of a clause; in docstrings either at
the head of a sentence. Left out are code, formulas, what commands print, questions, and the log of predictions.

A sentence that is kept has a row in `sentences.csv`: its file, words that tell it from others there, and the tests or
the claim of `data/claims.json` that would fail if it were false. Wording is free: a row asks for evidence.
"""

import ast
import csv
import json
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
ROWS = Path(__file__).with_suffix(".csv")
STRONG = re.compile(
    r"\b(?:exactly|never|always|best|every time|guarantee\w*|identical\w*|bit for bit|lossless\w*)\b(?!\()", re.I
)
CASES = re.compile(r"\bno\b(?! longer)|(?:^|[;:,] |\b(?:and|so|that|where) )all\b(?! (?:of|that|but)\b)", re.I)
HEAD = re.compile(r"(?:All(?! (?:of|that|but)\b)|No) ")
CODE = re.compile(r"^ *```.*?^ *```$|<!--.*?-->|``.*?``|`[^`\n]*`|\$\$.*?\$\$", re.M | re.S)
PARAGRAPH = re.compile(r"\n\s*\n|\n(?= *(?:[-*|#>]|\d+\.) )|\n(?=[^\n]*\S {3,}\S)")  # and rows of tables
SENTENCE = re.compile(r"(?<=[.!?:])(?:\*\*)?\s+(?=[A-Z0-9*\[(“…·])")
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class Row(NamedTuple):
    """A kept sentence: words of it, and the tests or the claim that back it."""

    file: str
    words: str
    tests: str
    claim: str


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def pages() -> Iterator[tuple[str, str]]:
    """Yield the name and the text of every page; of a notebook, of each Markdown cell."""
    paths = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *(ROOT / "docs").rglob("*.md"), *ROOT.glob("data/**/*.md")]
    for path in sorted(path for path in paths if path.name != "predictions.md"):
        yield name_of(path), path.read_text()
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        for cell in json.loads(path.read_text())["cells"]:
            if cell["cell_type"] == "markdown":
                yield name_of(path), "".join(cell["source"])


def docstrings() -> Iterator[tuple[str, str]]:
    """Yield the name of a file of the library and a docstring of it, for files that have such a word."""
    for path in sorted(path for folder in ("workbench", "kernels") for path in (ROOT / folder).rglob("*.py")):
        if STRONG.search(text := path.read_text()) or HEAD.search(text):
            nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, DOCUMENTED)]
            yield from ((name_of(path), said) for node in nodes if (said := ast.get_docstring(node)))


def found() -> Iterator[tuple[str, str]]:
    """Yield (file, sentence) for every sentence that claims much."""
    for texts, has_cases in ((pages(), CASES.search), (docstrings(), HEAD.match)):
        for file, text in texts:
            for paragraph in PARAGRAPH.split(CODE.sub("·", text)):
                is_row = paragraph.lstrip().startswith("|")
                for sentence in SENTENCE.split(" ".join(paragraph.split())):
                    claims = STRONG.search(sentence) or (not is_row and has_cases(sentence))
                    if claims and not sentence.endswith("?"):
                        yield file, sentence


def rows() -> list[Row]:
    with ROWS.open(newline="") as lines:
        return [Row(**row) for row in csv.DictReader(lines)]


@cache
def tests_of(file: str) -> frozenset[str]:
    """Return the names under which pytest collects from a file: its functions, and classes that it names."""
    body = ast.parse((ROOT / file).read_text() if (ROOT / file).is_file() else "").body
    named = {
        target.id for node in body if isinstance(node, ast.Assign) for target in node.targets if hasattr(target, "id")
    }
    functions = {node.name for node in body if isinstance(node, ast.FunctionDef)}
    return frozenset(name for name in functions | named if name.startswith(("test_", "Test")))


def faults() -> list[str]:
    """Return what is wrong: sentences without a row, and rows without their sentence or without evidence."""
    kept, sentences = rows(), list(found())
    items = json.loads((ROOT / "data" / "claims.json").read_text())["items"]
    claims = {claim["id"] for item in items for claim in item["claims"]}
    wrong = [
        f"give it a row, or say it plainly: {file}: {sentence}"
        for file, sentence in sentences
        if not any(row.file == file and row.words in sentence for row in kept)
    ]
    for row in kept:
        if sum(row.file == file and row.words in sentence for file, sentence in sentences) != 1:
            wrong.append(f"not one sentence: {row.file}: {row.words}")
        tests = [test.partition("::") for test in row.tests.split()]
        gone = [f"{file}::{test}" for file, _, test in tests if test not in tests_of(file)]
        gone += [row.claim] if row.claim and row.claim not in claims else []
        if gone or not (tests or row.claim):
            wrong.append(f"no evidence {' '.join(gone)}: {row.file}: {row.words}")
    return wrong


if __name__ == "__main__":
    for row in rows():
        print(f"{row.file}: {row.words}", *row.tests.split(), *filter(None, [row.claim]), sep="\n    ")
    print(*faults(), sep="\n")
    sys.exit(bool(faults()))
