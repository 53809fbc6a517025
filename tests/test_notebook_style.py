"""Notebooks are thin: short cells without functions of their own; those that shape records are in the package."""

import ast
from pathlib import Path

import nbformat
import pytest

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
