"""Figures of results in notebooks: they draw what ships, several sources side by side, and say what is missing."""

import ast
import json
from pathlib import Path

import plotly.graph_objects as go
import pytest

from workbench.app.notebooks import notebook
from workbench.results import Missing, Results, read
from workbench.results.reader import FOLDER
from workbench.results.writer import prepare

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
CELLS = {  # notebook → its cells of results, and the parameters that they use
    "14_store": (
        ["14-05", "14-24", "14-28", "tiers-kept", "14-14", "14-15", "14-17", "14-18", "14-20"],
        {"order": "relevance", "question": 50, "zipf": 1.0},
    ),
}


def shown(name: str, places: list[str]) -> tuple[dict[str, object], Results]:
    """Return what every cell of results shows, and the results."""
    ids, parameters = CELLS[name]
    cells = {cell["id"]: cell for cell in json.loads((NOTEBOOKS / f"{name}.ipynb").read_text())["cells"]}
    names = {"notebook": notebook, "results": places, **parameters}
    out = {}
    for cell in ids:
        *before, last = ast.parse("".join(cells[cell]["source"])).body
        exec(compile(ast.Module(before, []), cell, "exec"), names)
        assert isinstance(last, ast.Expr), f"cell {cell} of {name} shows nothing"
        out[cell] = eval(compile(ast.Expression(last.value), cell, "eval"), names)
    return out, names["found"]


@pytest.mark.parametrize("name", CELLS)
def test_shipped_results_are_drawn(name):
    figures, _ = shown(name, ["shipped"])
    assert not [cell for cell, figure in figures.items() if not isinstance(figure, go.Figure)]
    assert all("shipped" in figure.layout.meta["sources"] for figure in figures.values())


@pytest.mark.parametrize("name", CELLS)
def test_several_sources_are_drawn_side_by_side(name):
    figures, _ = shown(name, [f"mine={FOLDER}", "shipped"])
    assert all({"mine", "shipped"} <= set(figure.layout.meta["sources"]) for figure in figures.values())


@pytest.mark.parametrize("name", CELLS)
def test_without_results_a_cell_names_the_command_that_measures_them(name, tmp_path):
    prepare(tmp_path)
    lines, found = shown(name, [str(tmp_path)])
    assert read(str(tmp_path)).sources == found.sources
    assert not [cell for cell, line in lines.items() if not isinstance(line, Missing)]
    assert all("--out" in str(line) for line in lines.values())
