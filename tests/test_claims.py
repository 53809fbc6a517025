"""No fixed text claims what a measurement can falsify: such sentences are made of numbers, beside their figure.

A claim that is true by construction stands in ALLOWED, with why it is.
"""

import ast
import re
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PLOTS = sorted((ROOT / "workbench" / "plots").glob("*.py"))
CLAIMS = re.compile(
    r"\b(better|worse|best|worst|superior|outperforms?|beats?|wins?|heals?|hurts?|lifts?|as well as|as good as|"
    r"as exact as|faster|slower|cheaper|dearer|always|never|everywhere|nowhere|loses? (nothing|least|most)|no loss|"
    r"nothing is|costs? nothing|for free|saves?|saved|gains?|changes nothing|by any method|should do|so does the paper|"
    r"is not computed|identical|equals?)\b",
    re.IGNORECASE,
)
NUMBERS = re.compile(r"(?<![\w.,-])\d[\d,.]*(?![\w-])%?")
REFERENCE = re.compile(
    r"`[^`]*`|\b([Ff]igures?|[Tt]ables?|[Ss]ections?|[Ee]quations?|[Ll]ayers?|appendix)\s+\d\w*((,| and| to) \d\w*)*"
)
# text → why no measurement can falsify the claim in it
ALLOWED = {
    "What reuse saves": "a heading: rows are counted from the masks",
    "what reuse saves": "a heading: the times stand beside it",
    "what it saves": "a heading: the numbers stand beside it",
    "nothing is lost and nothing is saved": "what a missed look-up computes is what full attention's cache would hold",
    "the worst of them hold": "of tokens sorted by their deviation",
    "the question is always computed": "the engine computes the question's rows under every plan",
    "can cost less than it saves": "the length at which it does is computed below",
    "a perfect kernel would save": "a bound, drawn in the figure",
    "the best that a prefix cache can do": "the cache holds the whole context",
    "best over aliases": "how exact match and F1 are defined",
    "(below 1: the baseline is faster)": "defines a column",
    "what a better choice could win": "the choice by true mass is drawn",
    "all … answers equal, to the token": "the cell stops where they are not",
    "the question always is": "the engine computes the question's rows under every plan",
    "Saved at best: what is not always kept": "defines a column",
    "time that can be saved": "a bound, drawn in the figure",
    "cheaper?": "a question, answered by the table",
    "is at least … faster": "the rule of the choice, not a result",
}
NUMBERS_ALLOWED = {
    "position 0": "where a block is cached",
    "the 95% interval": "the level of every interval here",
}


def texts_of_notebook(path: Path) -> list[str]:
    """Return the Markdown cells of a notebook."""
    return [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "markdown"]


def said(source: str) -> list[str]:
    """Return the fixed parts of notices, captions and titles in Python source.

    Of an f-string what stands between its values; of an expression with a condition nothing, for it turns.
    """
    values = [
        node.value
        for node in ast.walk(ast.parse(source))
        if (isinstance(node, ast.keyword) and node.arg in ("notice", "caption", "title"))
        or (isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") in ("notice", "caption", "title"))
    ]
    return [text for value in values for text in fixed(value)]


def fixed(node: ast.expr) -> list[str]:
    """Return the fixed texts of an expression; values and conditions are an ellipsis."""
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else []
    if isinstance(node, ast.JoinedStr):
        return ["".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values)]
    return fixed(node.left) + fixed(node.right) if isinstance(node, ast.BinOp) else []


def uncovered(pattern: re.Pattern, text: str, allowed: dict[str, str]) -> list[str]:
    """Return what a pattern finds in a text outside of the entries of `allowed`."""
    covered = [m.span() for entry in allowed for m in re.finditer(re.escape(entry), text)]
    return [m[0] for m in pattern.finditer(text) if not any(a <= m.start() and m.end() <= b for a, b in covered)]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_markdown_claims_nothing_that_a_measurement_can_falsify(path):
    found = [(claim, text) for text in texts_of_notebook(path) for claim in uncovered(CLAIMS, text, ALLOWED)]
    assert found == [], "make the sentence from the numbers, beside its figure, or reword it"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_markdown_quotes_no_parameter(path):
    texts = [REFERENCE.sub("", text) for text in texts_of_notebook(path)]
    found = [(number, text) for text in texts for number in uncovered(NUMBERS, text, NUMBERS_ALLOWED)]
    assert found == [], "a number that is a parameter or a result comes out of a cell"


@pytest.mark.parametrize("path", PLOTS, ids=lambda path: path.stem)
def test_fixed_parts_of_notices_claim_nothing(path):
    found = [(claim, text) for text in said(path.read_text()) for claim in uncovered(CLAIMS, text, ALLOWED)]
    assert found == [], "let a function word it by the sign of its numbers"


def test_every_exception_is_needed():
    texts = [t for path in NOTEBOOKS for t in texts_of_notebook(path)]
    texts += [t for path in PLOTS for t in said(path.read_text())]
    unused = [entry for entry in (*ALLOWED, *NUMBERS_ALLOWED) if not any(entry in text for text in texts)]
    assert unused == []


def test_claims_of_earlier_versions_would_be_found():
    for claim in (
        "On a CPU nothing is saved: the choice is carried out as a mask.",
        "what is dropped is not computed",
        "it answers as well as it does with full attention",
        "do not answer these questions rightly, by any method",
        "Preparation is paid offline and costs nothing at request time",
        "they should do as well",
        "Why preparation does not lift the lab model",
    ):
        assert uncovered(CLAIMS, claim, ALLOWED), claim
    for number in (
        "which 15% of it matter",
        "(32 × 32 tokens here)",
        "## 32,768 tokens",
        "By selector at 15%, one by one",
    ):
        assert uncovered(NUMBERS, number, NUMBERS_ALLOWED), number
    assert not uncovered(NUMBERS, REFERENCE.sub("", "figures 2, 13 and 17, table 5"), {})
