"""Parameters of notebooks that name something are checked before the first cell runs and before a file is written."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from workbench.app.console.options import parse
from workbench.app.notebooks import notebook
from workbench.app.notebooks.run import check
from workbench.app.reports import report
from workbench.core import mask_rules
from workbench.core.blocks import Block, Prompt
from workbench.core.errors import BadInput

NOTEBOOKS = sorted(Path(__file__).parents[1].glob("notebooks/[0-9]*.ipynb"))
WRONG = {
    "layer": [99, -1, 1.5, "a", 10**30],
    "head": [99, -1, 10**30],
    "sample": [999_999, -1, "a", 10**30],
    "device": ["x", "", "cuda:99", "mps", 5],
    "model": ["nope", "", "x" * 5000, "a\0b", 5],
    "data": ["nope", "", "x" * 5000, "lab(", "lab(nope=1)", "nope.json", 5],
    "seed": [-1, 10**30, "a"],
    "passages": [10**30, "a"],
    "select": ["nope", "", "query_guided(", "query_guided(nope=1)", "../x", 5],
    "selectors": [["nope"], ["query_guided(layers=x)"], ["random", ""], "random", [5]],
    "others": [["nope"], ["first_k(-1)"]],
    "prepare": ["nope", "", "with_neighbours(n=-1)", 5],
    "sparse": ["nope", "bfla(mass=7)", "a\0b", "x" * 5000],
    "methods": [["nope"], ["bfla", "window(1=2)"]],
    "joined": ["nope", "flash_prefill("],
}


def declared(path: Path) -> str:
    cells = json.loads(path.read_text())["cells"]
    return next("".join(cell["source"]) for cell in cells if "parameters" in cell["metadata"].get("tags", []))


CASES = [
    pytest.param(path, name, value, id=f"{path.stem[:2]} {name}={str(value)[:12]!r}")
    for path in NOTEBOOKS
    for name, values in WRONG.items()
    if f"\n{name}: " in declared(path)
    for value in values
]


@pytest.mark.parametrize(("path", "name", "value"), CASES)
def test_a_notebook_refuses_a_value_before_its_first_cell(path, name, value):
    with pytest.raises(BadInput) as refused:
        check(path, {name: value})
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 900


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_values_that_a_notebook_comes_with_are_allowed(path):
    check(path, {})


def values(**given: Any) -> dict[str, Any]:
    kinds = {name: type(value) for name, value in given.items()}
    return {"__annotations__": kinds, **given}


def test_limits_are_those_of_the_model_and_of_the_file(tmp_path):
    record = {"question": "q", "answers": ["a"], "ctxs": ["x"]}
    (tmp_path / "two.jsonl").write_text(2 * (json.dumps(record) + "\n"))
    notebook.validate(values(data=str(tmp_path / "two.jsonl"), sample=1, model="lab-full", layer=7, head=7))
    for wrong, why in (
        ({"data": str(tmp_path / "two.jsonl"), "sample": 2}, "parameter sample is 2: data .* has 0 to 1"),
        ({"model": "lab-full", "layer": 8}, "parameter layer is 8: model 'lab-full' has 0 to 7"),
        ({"model": "lab-full", "head": 8}, "parameter head is 8: model 'lab-full' has 0 to 7"),
    ):
        with pytest.raises(BadInput, match=why):
            notebook.validate(values(**wrong))
    with pytest.raises(BadInput, match="parameter head is 4: model 'lab-full' has 0 to 3"):
        notebook.validate(values(model="lab-full", head=4), head=notebook.KV_HEAD)


def test_an_output_below_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(BadInput, match="parameter output"):
        notebook.validate(values(output=str(tmp_path / "file" / "below")))


def test_a_report_refuses_before_it_makes_its_folder(tmp_path):
    (deviation,) = (path for path in NOTEBOOKS if path.stem.startswith("06"))
    with pytest.raises(BadInput, match="parameter sample is 999999"):
        report.run([deviation], tmp_path / "report", {"sample": 999_999})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["9" * 5000, "[" * 100_000, '"\\ud800"'])
def test_a_value_that_no_file_holds_is_refused(text):
    with pytest.raises(BadInput, match="parameter a cannot be read"):
        parse([f"a={text}"])


SENTENCES = ["row < " + "9" * 5000, f"row < {10**30}", "row * 2147483647 * 2147483647 * 2147483647 > col", "a\0b"]
SENTENCES += [
    "2147483647 * 2147483647 * 2147483647 > row",
    "window(2147483648)",
    "(" * 10_000,
    "not " * 10_000 + "causal",
]
SENTENCES += ["window(2147483647 * 2147483647 * 2147483647)", "\ud800", "row.__class__", "__import__('os')", ""]


@pytest.mark.parametrize("sentence", SENTENCES, ids=[repr(sentence[:20]) for sentence in SENTENCES])
def test_a_mask_rule_of_huge_numbers_or_none_is_one_sentence(sentence):
    with pytest.raises(BadInput, match="mask rule"):
        mask_rules.check(sentence)


def test_a_rule_whose_products_outgrow_a_tensor_is_refused_where_they_do():
    rule = mask_rules.parse("row * 2147483647 * 1000000 > col", Prompt((Block((0,) * 3000), Block((0,)))))
    rows = torch.arange(3000)
    with pytest.raises(BadInput, match="its numbers grow beyond"):
        rule(rows[:, None], rows[None])


def test_what_ships_is_checked_without_a_model_library():
    given = "model='lab-full', data='lab', device='cpu', layer=1, sample=3"
    kinds = "dict(model=str, data=str, device=str, layer=int, sample=int)"
    code = "import sys; from workbench.app.notebooks import notebook\n"
    code += f"notebook.validate(dict({given}, __annotations__={kinds})); "
    subprocess.run(
        [sys.executable, "-c", f"{code}assert not {{'torch', 'transformers'}} & set(sys.modules)"], check=True
    )
