"""What notebooks say of a model that is no lab model, and which one they take for its fine-tuned version."""

import ast
import json
import re
from pathlib import Path

import nbformat
import pytest

from workbench.app.notebooks import real_model
from workbench.data import assets

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
NOTEBOOKS = [path for path in sorted(FOLDER.glob("[0-9][0-9]_*.ipynb")) if 'model: str = \\"lab-' in path.read_text()]


@pytest.mark.parametrize("model", ["lab-full", "lab-block"])
def test_of_a_lab_model_nothing_is_said(model):
    assert real_model.notice(model, "lab", ["A section"]) is None


def test_a_model_is_introduced_with_its_note_and_with_what_was_not_measured_on_it(tmp_path):
    (tmp_path / "workbench.json").write_text(json.dumps({"note": "Its weights have 4 bits."}))
    text = real_model.notice(str(tmp_path), "lab", ["One", "Two, and more"], tuned=str(tmp_path)).data
    assert f"**{tmp_path}** is the model here. Its weights have 4 bits. It is asked" in text
    assert "not on this one: *One*; *Two, and more*." in text and text.endswith("in that place itself.")


def test_what_does_not_apply_is_left_out(tmp_path):
    text = real_model.notice(str(tmp_path), "questions.jsonl", tuned="lab-block").data
    assert text == f"**{tmp_path}** is the model here."


def test_the_fine_tuned_version_is_one_that_ships(monkeypatch):
    monkeypatch.setattr(assets, "models", lambda: ["lab-block", "lab-full", "real-block"])
    names = ["lab-full", "lab-block", "real", "other"]
    assert [real_model.tuned_version(name) for name in names] == ["lab-block", "lab-block", "real-block", "other"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notice_names_sections_that_are_there(path):
    cells = nbformat.read(path, as_version=4).cells
    headings = {heading for cell in cells for heading in re.findall(r"^## (.+)$", cell.source, re.MULTILINE)}
    (notice,) = [cell.source for cell in cells if "import notice" in cell.source]
    lists = [node for node in ast.walk(ast.parse(notice)) if isinstance(node, ast.List)]
    named = {item.value for node in lists for item in node.elts if isinstance(item, ast.Constant)}
    assert named <= headings
