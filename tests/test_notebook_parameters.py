"""Notebook parameters: every wrong value ends in one sentence before any work; results appear whole or not at all."""

import ast
import json
from pathlib import Path
from typing import Any, Optional

import nbformat
import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.refusals import refused
from workbench.app.notebooks import notebook, told


def cell(annotation: Any, value: Any, name: str = "p") -> dict[str, Any]:
    return {"__annotations__": {name: annotation}, name: value}


@pytest.mark.parametrize(
    ("annotation", "value", "becomes"),
    [
        (int, 3, 3),
        (float, 3, 3.0),
        (float, "1e-3", 1e-3),  # what YAML makes of 1e-3
        (bool, False, False),
        (str, "a", "a"),
        (Optional[float], None, None),  # noqa: UP045 - the form that papermill understands
        (Optional[float], 2, 2.0),  # noqa: UP045
        (int | None, 4, 4),
        (list[int], [1, 2], [1, 2]),
        (list[float], [1, "2e1"], [1.0, 20.0]),
        (tuple[int, ...], [1, 2], (1, 2)),
        (dict, {"a": 1}, {"a": 1}),
    ],
)
def test_right_values_are_accepted_in_the_annotated_type(annotation, value, becomes):
    namespace = cell(annotation, value)
    notebook.validate(namespace)
    assert namespace["p"] == becomes
    assert type(namespace["p"]) is type(becomes)


@pytest.mark.parametrize(
    ("annotation", "value", "allowed"),
    [
        (int, "abc", "a whole number"),
        (int, True, "a whole number"),
        (int, 1.5, "a whole number"),
        (float, "abc", "a number"),
        (float, float("nan"), "a number"),
        (float, "inf", "a number"),
        (bool, 1, "True or False"),
        (str, 3, "a text"),
        (Optional[int], "x", "a whole number or None"),  # noqa: UP045
        (list[int], 3, "a list, each a whole number"),
        (list[int], [1, "x"], "a whole number"),
        (dict, [], "a dict"),
    ],
)
def test_wrong_types_are_refused_with_name_value_and_what_is_allowed(annotation, value, allowed):
    said = f"parameter ratio is .*it must be {allowed}$"
    refused(said, notebook.validate, cell(annotation, value, "ratio"))


@pytest.mark.parametrize(
    ("value", "rule", "message"),
    [
        (0, notebook.between(1, 10_000), "parameter p is 0: allowed is between 1 and 10,000"),
        (-1, notebook.at_least(0), "parameter p is -1: allowed is at least 0"),
        ([1, 99], notebook.between(1, 9), "parameter p is 99: allowed is between 1 and 9"),
        ("ful", notebook.one_of("full", "block"), "parameter p is 'ful': allowed is one of full, block"),
    ],
)
def test_values_out_of_range_are_refused(value, rule, message):
    refused(f"^{message}$", notebook.validate, cell(Any, value), p=rule)


def test_a_rule_or_size_for_a_name_that_is_no_parameter_is_refused():
    said = "no parameter is named smaples: there are p"
    refused(said, notebook.validate, cell(int, 1), smaples=notebook.at_least(1))
    refused(said, notebook.sized, cell(int, 1), model_of(1), smaples=(60, 6))


@pytest.mark.parametrize(
    ("annotation", "value", "shown"),
    [
        (str, "<b>", ["p=", "&lt;b&gt;"]),
        (list[float], [0.1, 2.0], ["p=", "0.1, 2.0"]),
        (int, 0, ["p=", ">0<"]),
        (bool, False, ["p=", "False"]),
        *((Optional[Any], nothing, []) for nothing in (None, "", [], ())),  # noqa: UP045
    ],
)
def test_parameters_that_choose_something_are_told_as_text(annotation, value, shown):
    line = told.values({**cell(annotation, value), "other": 1})
    assert all(text in line for text in shown) and bool(line) == bool(shown)
    assert told.values(cell(Optional[str], "runs", "output")) == ""  # noqa: UP045


@given(low=st.integers(), high=st.integers(), value=st.integers())
def test_between_accepts_exactly_the_closed_interval(low, high, value):
    assert notebook.between(low, high).holds(value) == (low <= value <= high)


@given(step=st.integers(1, 300), value=st.integers(-1000, 1000))
def test_multiple_of_accepts_positive_multiples_only(step, value):
    check = notebook.multiple_of(step)
    assert check.holds(value) == (value in range(step, 1001, step))
    assert check.allowed == f"a multiple of {step}"


def model_of(parameters: int, device: str = "cpu") -> torch.nn.Module:
    """A stand-in that counts as many parameters as a model; on the device `meta` none of them takes memory."""
    model = torch.nn.Module()
    model.weights = torch.nn.Parameter(torch.empty(parameters, device="meta"))
    model.device = torch.device(device)
    return model


@pytest.mark.parametrize(
    ("chosen", "parameters", "device", "samples"),
    [
        (None, 8_000_000, "cpu", 60),
        (None, notebook.SMALL, "cpu", 60),
        (None, notebook.SMALL + 1, "cpu", 6),
        (None, 135_000_000, "cpu", 6),
        (None, 135_000_000, "cuda", 60),
        *((chosen, 135_000_000, "cpu", chosen) for chosen in (0, 1, 7, 60, [])),
    ],
)
def test_a_parameter_that_is_none_gets_what_the_model_can_carry_out(chosen, parameters, device, samples):
    namespace = cell(Optional[int], chosen, "samples")  # noqa: UP045
    notebook.sized(namespace, model_of(parameters, device), samples=(60, 6))
    assert namespace["samples"] == samples


def test_nobody_watches_outside_a_notebook():
    assert not notebook.is_live()


def test_results_are_whole_and_success_comes_last(tmp_path):
    folder = tmp_path / "a" / "b"
    drawn = {"t": pd.DataFrame({"n": [1, 2]}), "records": [{"n": 1, "of": "a"}, {"n": 2, "of": "b"}]}
    notebook.save(folder, {"f1": np.float32(0.5), "by": {"x": np.arange(2)}}, drawn)
    assert json.loads((folder / "metrics.json").read_text()) == {"here": {"f1": 0.5, "by": {"x": [0, 1]}}}
    assert pd.read_parquet(folder / "t.parquet").to_dict("list") == {"n": [1, 2], "source": ["here", "here"]}
    listed = pd.read_parquet(folder / "records.parquet").to_dict("list")
    assert listed == {"n": [1, 2], "of": ["a", "b"], "source": ["here", "here"]}
    assert {path.name for path in folder.iterdir()} == {"metrics.json", "t.parquet", "records.parquet", "_SUCCESS"}
    last = max(path.stat().st_mtime_ns for path in folder.iterdir())
    assert (folder / "_SUCCESS").stat().st_mtime_ns == last


def test_numbers_of_other_sources_stand_under_their_names(tmp_path):
    notebook.save(tmp_path, {"em": 0.5}, {"t": [{"source": "mine", "n": 1}]}, read={"mine": {"em": 0.25}})
    assert json.loads((tmp_path / "metrics.json").read_text()) == {"here": {"em": 0.5}, "mine": {"em": 0.25}}
    assert pd.read_parquet(tmp_path / "t.parquet").source.tolist() == ["mine"]


def test_results_that_cannot_be_written_leave_no_success(tmp_path):
    notebook.save(tmp_path, {"f1": 0.5})
    with pytest.raises(ValueError):
        notebook.save(tmp_path, {"f1": float("nan")})
    assert not (tmp_path / "_SUCCESS").exists()


def test_without_an_output_folder_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    notebook.save(None, {"f1": 0.5})
    assert not list(tmp_path.iterdir())


# --- Notebooks are thin: short cells without functions of their own; those that shape records are in the package
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
