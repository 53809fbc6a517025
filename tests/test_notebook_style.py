"""Notebooks are thin: short cells without functions of their own; those that shape records are in the package."""

import ast
import re
from pathlib import Path

import nbformat
import pytest
from papermill.inspection import inspect_notebook

NOTEBOOKS = sorted((Path(__file__).resolve().parents[1] / "notebooks").glob("*.ipynb"))
LONGEST = 30  # lines of a code cell, but for the one with the parameters


def cells(path: Path) -> list[tuple[int, str]]:
    """Number and source of every code cell but the one with the parameters."""
    notebook = nbformat.read(path, as_version=4)
    return [
        (number, cell.source)
        for number, cell in enumerate(notebook.cells)
        if cell.cell_type == "code" and "parameters" not in cell.metadata.get("tags", [])
    ]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_cells_are_short_and_define_no_function(path):
    for number, source in cells(path):
        assert len(source.splitlines()) <= LONGEST, f"cell {number} is too long: move its work into a function"
        assert "noqa" not in source and "fmt: " not in source, f"cell {number} asks the linter for an exception"
        nodes = list(ast.walk(ast.parse(source)))
        assert not any(isinstance(node, ast.FunctionDef) for node in nodes), f"cell {number}: a function"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_parameter_without_a_value_says_which_one_it_gets(path):
    comments = {name: found["help"] for name, found in inspect_notebook(str(path)).items()}
    for name, (small, large) in sizes(path).items():
        told = re.search(r"; none: (.+) \(large model: (.+)\)$", comments[name])
        assert told, f"{name} names no values"
        assert [told[1], told[2]] == [in_words(small), in_words(large, small)]


def sizes(path: Path) -> dict[str, tuple]:
    """The two values of every parameter in the calls of `notebook.sized`; names stand for what the cell gives them."""
    found: dict[str, tuple] = {}
    for _, source in cells(path):
        tree = ast.parse(source)
        lists = {node.targets[0].id: node.value for node in tree.body if is_list(node)}
        for call in ast.walk(tree):
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "notebook.sized":
                known = {name: ast.literal_eval(value) for name, value in lists.items()}
                found |= {word.arg: eval(ast.unparse(word.value), {}, known) for word in call.keywords}
    return found


def is_list(node: ast.stmt) -> bool:
    """Whether a statement gives a name a list of numbers."""
    return isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.List)


def in_words(value: int | list[int], longer: list[int] | None = None) -> str:
    """A value as the comment gives it; a list by its ends, or by its last item where it begins like a longer one."""
    if not isinstance(value, list):
        return f"{value}"
    if any(isinstance(item, float) for item in value):
        return f"{len(value)} from {value[0]} to {value[-1]}"
    if len(value) == 2:
        return f"{value[0]} and {value[1]}"
    return f"{value[-1]}" if longer else f"{value[0]} to {value[-1]}"
