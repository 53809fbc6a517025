"""Engines beside each other: what is measured, how differences are told, and the figure of it."""

from dataclasses import replace

import engine_speed
import engine_tokens
import pytest
import torch

from tests import tiny
from tests.random_models import Letters, model_of, prompt_of
from workbench import models
from workbench.data import load
from workbench.experiments.judging import engine_margins
from workbench.experiments.trials.trial import Trial
from workbench.methods.engines import EngineChoice, pages_of
from workbench.methods.generation import generate
from workbench.methods.modes.full import Full
from workbench.methods.modes.reuse import Reuse


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    folder = str(tiny.checkpoint(tmp_path_factory.mktemp("engines") / "model"))
    loaded = models.load(folder)
    prompts = loaded.layout.prompts(load("lab", 3, passages=2), loaded.tokenizer)
    trial = Trial(folder, mode="block", max_new_tokens=4)
    said = []
    unit = engine_speed.answered(loaded, trial, prompts, (1, 2), said.append)
    rows = engine_speed.decoded(loaded, prompts, Full(), (1, 2), 5, said.append)
    about = {"model": "tiny", "dtype": "float32"}
    units = {"a": {**about, "method": "block", **unit}, "b": {**about, "method": "full", "decoding": rows}}
    return {"device": "here", "sizes": [1, 2], "units": units}, said


def test_every_engine_batch_and_store_is_timed_and_tokens_are_compared(kept):
    units, said = kept[0]["units"], kept[1]
    assert len(units["a"]["speed"]) == 8 and {row["questions"] for row in units["a"]["speed"]} == {3}
    between = [pair["between"] for pair in units["a"]["tokens"]]
    assert between == [[["contiguous", n], ["paged", n]] for n in (1, 2)] + [[["contiguous", 1], ["contiguous", 2]]]
    assert all(pair["equal"] == 3 for pair in units["a"]["tokens"])
    assert [row["requests"] for row in units["b"]["decoding"]] == [3, 3, 2, 2]
    assert len(said) == 12


def test_rows_of_other_numbers_at_a_time_stay(kept):
    unit = kept[0]["units"]["a"]
    found = {"speed": [row | {"questions": 9} for row in unit["speed"] if row["batch"] == 2], "tokens": []}
    both = engine_speed.beside(unit, found, [2])
    assert [(row["batch"], row["questions"]) for row in both["speed"]] == [(1, 3)] * 4 + [(2, 9)] * 4
    assert [pair["between"] for pair in both["tokens"]] == [[["contiguous", 1], ["paged", 1]]]
    assert engine_speed.beside({}, found, [2]) == found


def test_tokens_alone_are_compared_portion_by_portion_and_go_on(kept, tmp_path):
    folder = str(tiny.checkpoint(tmp_path / "model"))
    loaded, trial = models.load(folder), Trial(folder, mode="block", max_new_tokens=4)
    prompts = loaded.layout.prompts(load("lab", 3, passages=2), loaded.tokenizer)
    first, second = engine_tokens.compared(loaded, trial, prompts, (1, 2), portion=2)
    assert [row["questions"] for row in first] == [2, 2] and [row["equal"] for row in second] == [3, 3]
    assert [row["between"] for row in first] == [[["contiguous", 1], ["paged", n]] for n in (1, 2)]
    (again,) = engine_tokens.compared(loaded, trial, prompts, (1, 2), first, portion=2)
    assert again == second


def test_what_differs_is_counted_on():
    one = {"questions": 2, "equal": 1, "tie": 1, "near": 0, "apart": 0, "listed": [{"steps": 1.0, "question": 1}]}
    both = engine_tokens._added(one, one)
    assert [both[name] for name in ("questions", "equal", "tie")] == [4, 2, 2]
    assert [row["question"] for row in both["listed"]] == [1, 3]


def test_a_difference_is_told_by_the_gap_of_its_first_two_tokens():
    model, prompts = model_of(), [prompt_of(20, 5)]
    (right,) = generate(model, Letters(), prompts, max_new_tokens=6)
    wrong = (*right.tokens[:3], (right.tokens[3] + 1) % 90, 5)
    loaded = models.Loaded(model, Letters(), None)
    found = engine_tokens.differences(loaded, prompts, Full(), [right.tokens], [wrong])
    assert found["equal"] == 0 and found["apart"] == 1 and found["listed"][0]["at"] == 3
    ended = engine_tokens.differences(loaded, prompts, Full(), [right.tokens], [right.tokens[:2]])
    assert ended["listed"][0]["at"] == 2 and ended["listed"][0]["gap"] > 0
    assert engine_tokens.differences(loaded, prompts, Full(), [right.tokens], [right.tokens])["equal"] == 1


def test_a_difference_within_rounding_is_told_by_the_same_model_in_fp32():
    model, prompts = model_of(), [prompt_of(20, 5)]
    (right,) = generate(model, Letters(), prompts, max_new_tokens=4)
    wrong = (*right.tokens[:2], (right.tokens[2] + 1) % 90)
    loaded = models.Loaded(model, Letters(), None)
    same = engine_tokens.differences(loaded, prompts, Full(), [right.tokens], [wrong], exact=loaded)
    assert same["rounded"] == 0 and same["listed"][0]["rounding"] == 0 and same["listed"][0]["exact_gap"] > 0
    assert "rounded" not in engine_tokens.differences(loaded, prompts, Full(), [right.tokens], [wrong])
    exact = torch.tensor([3.0, 2.0, 1.0])
    assert engine_tokens.rounding(exact + 5, exact) == pytest.approx(0, abs=1e-6)
    assert engine_tokens.rounding(exact + torch.tensor([0.3, 0.0, 0.0]), exact) == pytest.approx(0.2)


@pytest.mark.parametrize(("size", "dtype", "step"), [(1.0, torch.bfloat16, 2**-7), (20.0, torch.bfloat16, 2**-3)])
def test_a_step_of_the_dtype_grows_with_the_number(size, dtype, step):
    assert engine_tokens._step(size, dtype) == step
    following = torch.tensor(size, dtype=dtype) + step
    assert float(following) == size + step


def test_no_token_ends_a_text_meanwhile_and_all_is_put_back():
    model = model_of(eos_token_id=7)
    with engine_speed.endless(model):
        assert model.config.eos_token_id is None
    assert model.config.eos_token_id == 7 and replace(Trial("x"), engine="paged").engine == "paged"


def test_pages_and_the_contiguous_engine_give_the_same_logits_behind_a_part_of_an_answer():
    loaded, prompt = models.Loaded(model_of(), Letters(), None), prompt_of(20, 13, 5)
    for method in (Full(), Reuse()):
        wanted = engine_margins.predicted(loaded.model, prompt, method, (3, 1, 4, 1))
        for count in (0, 3):
            found = engine_margins.over_pages(loaded, prompt, method, (3, 1, 4, 1)[:count])
            assert found is None  # on a CPU pages answer where they are asked for by name
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(engine_margins, "choose_engine", lambda *_: EngineChoice("paged", "asked for"))
                found = engine_margins.over_pages(loaded, prompt, method, (3, 1, 4, 1)[:count])
            torch.testing.assert_close(found, wanted[count], atol=1e-4, rtol=1e-4)
        assert not pages_of(loaded.model).of(loaded.model, 1)[1].pinned


def test_a_tie_is_what_the_dtype_moves_elsewhere_too():
    model, half = model_of(), model_of().bfloat16()
    (right,) = generate(model, Letters(), [prompt_of(20, 5)], max_new_tokens=12)
    found = engine_margins.margins(half, model, prompt_of(20, 5), Full(), right.tokens)
    assert len(found) == 12 and all(0 <= moved < 0.1 for _, moved in found) and max(moved for _, moved in found) > 0
    assert engine_margins.margins(model, model, prompt_of(20, 5), Full(), right.tokens)[0][1] < 1e-5
    one = engine_margins.counted([(0.5, 0.01), (0.001, 0.03), (90.0, 0.02)])
    both = engine_margins.added(one, engine_margins.counted([]))
    assert one == both and one["answered"] == 3 and one["moved_most"] == pytest.approx(0.03)
    assert sum(one["margin_counts"]) == 3 and engine_margins.share_below(one) == pytest.approx(1 / 3)
    near, far = {"exact_gap": 0.02}, {"exact_gap": 0.04}
    astray = {"exact_gap": 0.02, "paged_moved": 0.5}  # pages are further off than the dtype alone
    assert engine_margins.ties([near, far, astray, near | {"paged_moved": 0.03}], 0.03) == 2


def test_margins_are_of_tokens_that_both_engines_answer_alike():
    moves = [[(1.0, 0.1), (2.0, 0.2), (3.0, 0.3)], [(4.0, 0.4), (5.0, 0.5)]]
    said = [(7, 8, 9), (1, 2)]
    assert engine_tokens._alike(moves, said, said) == [*moves[0], *moves[1]]
    assert engine_tokens._alike(moves, said, [(7, 8, 5), (1, 2, 3)]) == [*moves[0][:2], *moves[1]]
    assert engine_tokens._alike(moves, said, [(), (4, 2)]) == []


def test_with_the_model_in_fp32_every_portion_counts_margins(kept, tmp_path):
    folder = str(tiny.checkpoint(tmp_path / "model"))
    loaded, trial = models.load(folder, "cpu", "bfloat16"), Trial(folder, mode="block", max_new_tokens=4)
    prompts = loaded.layout.prompts(load("lab", 2, passages=2), loaded.tokenizer)
    *_, (row,) = engine_tokens.compared(loaded, trial, prompts, (1,), portion=1, exact=models.load(folder))
    assert row["margins"]["answered"] == 4 * row["questions"] == 8 and row["margins"]["moved_most"] > 0
