"""Block-Attention's printed tables beside ours: sentences turn with the numbers; too few answers compare nothing."""

import json

import pytest

from workbench.experiments import beyond_rag, papers, results
from workbench.plots import block_finetuning, block_tables

READ = results.read


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    return tmp_path


def write(folder, full, block, model="lab-block", n=100, names=("demonstrations", "game")):
    tasks = {"full": "1" * full + "0" * (n - full), "block": "1" * block + "0" * (n - block), "equal": "1" * n}
    content = {"model": model, "tasks": dict.fromkeys(names, tasks)}
    (folder / f"beyond-{model.replace('-', '_')}.json").write_text(json.dumps(content))


def notice(fig):
    return " ".join(note.text for note in fig.layout.annotations).replace("<br>", " ")


@pytest.mark.parametrize(
    ("full", "block", "words"),
    [(90, 60, "30.0 points below full attention"), (90, 90, "level with"), (5, 5, "too few to compare")],
)
def test_blocks_are_compared_where_full_attention_answers_enough(folder, full, block, words):
    assert block_tables.game_equality() is None and block_tables.NO_FILE in notice(block_tables.general_tasks())
    write(folder, full, block)
    assert words in notice(block_tables.game_equality()) and words in notice(block_tables.general_tasks())
    assert beyond_rag.rows("game")[0]["tells"] == (full > 5)


def test_the_first_version_stands_beside_ours():
    fig = block_tables.first_version(READ("block-attention"))
    assert "Llama-3-8B -19.9 untuned, +0.5 tuned" in notice(fig) and "the lab -22.9 untuned" in notice(fig)
    assert "Mistral-7B" in fig.data[0].cells.values[0][4]


def test_the_control_of_block_fine_tuning_is_compared_once_it_is_measured():
    methods = {name: {"right": "1" * 50 + "0" * 50} for name in (block_finetuning.TUNED, block_finetuning.FULL)}
    assert "not measured yet" in block_finetuning.control(methods)
    for right, words in ((20, "above"), (80, "below")):
        control = {block_finetuning.VANILLA: {"right": "1" * right + "0" * (100 - right)}}
        assert words in block_finetuning.control(methods | control)


def test_a_game_that_no_model_answers_is_left_out_with_its_reason(folder, monkeypatch):
    write(folder, 2, 2)
    monkeypatch.setattr(papers.block_attention, "structure", type("none", (), {"game": lambda bar: []}))
    assert papers.block_attention.game() == [] and papers.block_attention.in_context() == []
    write(folder, 80, 40)
    assert [one.verdict for one in papers.block_attention.game()] == ["contradicted"]


@pytest.mark.parametrize(("block", "verdict"), [(96, "unreachable"), (70, "contradicted")])
def test_states_of_a_lab_world_are_judged_beside_those_of_the_game(folder, monkeypatch, block, verdict):
    monkeypatch.setattr(papers.block_attention, "structure", type("none", (), {"game": lambda bar: []}))
    write(folder, 2, 2, "smollm2", names=("game",))
    write(folder, 98, block, names=("frames",))
    (found,) = papers.block_attention.game()
    assert "lab-block about states of a lab world" in found.what and found.verdict == verdict
    words = notice(block_tables.game_equality())
    assert "smollm2 answers 2% under full attention, too few" in words and "States of a lab world. lab-block" in words
