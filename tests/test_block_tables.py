"""Block-Attention's printed tables beside ours: sentences turn with the numbers; too few answers compare nothing."""

import json

import pytest

from workbench.data import game
from workbench.experiments import beyond_rag, papers, results
from workbench.plots import block_finetuning, block_tables

READ = results.read


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    return tmp_path


def write(folder, full, block, model="lab-block", n=100, **more):
    tasks = {"full": "1" * full + "0" * (n - full), "block": "1" * block + "0" * (n - block), "equal": "1" * n}
    content = {"model": model, "tasks": {"demonstrations": tasks, "game": {**tasks, **more.pop("of_game", {})}}, **more}
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


@pytest.mark.parametrize(("block", "verdict"), [(96, "confirmed"), (70, "contradicted")])
def test_models_tuned_on_games_are_judged_over_their_seeds(folder, monkeypatch, block, verdict):
    monkeypatch.setattr(papers.block_attention, "structure", type("none", (), {"game": lambda bar: []}))
    tuned = {"base": "lab-full", "data": "game, 24 questions", "steps": 400, "mode": "mixed", "seed": 0}
    for seed in (0, 1):
        of_game = {"kinds": {game.COUNT: "1" * 40 + "0" * 60}}
        write(folder, 96, block, f"lab-game-{seed}", tuned=tuned, of_game=of_game)
    (found,) = papers.block_attention.game()
    assert "2 training seeds" in found.what and found.verdict == verdict
    said = notice(block_tables.game_equality())
    assert "lab-game answers 100.0% under full attention" in said and "n = 40, training seeds: 2" in said
    assert "lab-game-0, lab-game-1: lab-full tuned on other games in mode mixed, 400 steps" in block_tables.tuned_on(
        beyond_rag.rows("game")
    )


def test_a_table_says_where_nothing_was_tuned_on_its_states(folder):
    write(folder, 90, 60)
    assert block_tables.tuned_on(beyond_rag.rows("game")) == "nothing was tuned on such states"
