"""A soak finds what it is for: pages that are lost, pages that change, answers that differ, steps not refused."""

import sys

import pytest

from tests import tiny
from tests.stress import between_steps, soak
from workbench import models, results
from workbench.data import load
from workbench.engine.pages.page_allocator import PageOwners
from workbench.engine.pages.paged_pool import Pool
from workbench.methods import engines
from workbench.methods.paged.answers import PagedAnswers


@pytest.fixture
def loaded(tmp_path):
    return models.load(str(tiny.checkpoint(tmp_path / "model")))


def made(loaded, monkeypatch, budget=1 << 18):
    monkeypatch.setattr(soak, "SHARE", 6)
    monkeypatch.setattr(soak, "WAVE", 6)
    monkeypatch.setattr(soak, "PROMPTS", 4)
    prompts = loaded.layout.prompts(load("lab", 3, passages=4), loaded.tokenizer)
    texts = list(dict.fromkeys(block for prompt in prompts for block in prompt.context))
    return soak.Soak(loaded, texts, [prompt.blocks[-1] for prompt in prompts], budget, seed=1)


def test_a_sound_pool_is_found_sound(loaded, monkeypatch):
    monkeypatch.setattr(engines, "LEAST_TOKENS", 0)  # a small pool, which blocks have to leave
    told = []
    report = made(loaded, monkeypatch).run(24, told.append, mixed=1.0)
    counts = report["counts"]
    assert soak.sound(report) and len(told) == 4 and counts["requests"] == 24
    assert counts["compared"] > 2 and counts["equal"] == counts["compared"]
    assert counts["checksums"] and counts["blocks gone"] and report["store"]["evictions"]
    counts["changed"] = 2
    assert not soak.sound(report)


def test_a_page_that_is_lost_or_changed_is_found(loaded, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(PagedAnswers, "release", lambda self, request: self.blocks.unpin(request.context))
        report = made(loaded, patch).run(6, lambda _: None, mixed=1.0)
        assert not soak.sound(report) and report["counts"]["pages lost"]
    del loaded.model.__dict__["_workbench_pages"]
    close = Pool.close

    def spoil(self, prompt):
        for block in prompt.context:
            self.keys[0][:, self.slots(block)] += 1.0
        close(self, prompt)

    with monkeypatch.context() as patch:
        patch.setattr(Pool, "close", spoil)
        report = made(loaded, patch).run(18, lambda _: None, mixed=1.0)
        assert not soak.sound(report) and report["counts"]["changed"]


def test_every_step_over_pages_of_somebody_else_is_refused_and_every_other_answer_is_right(loaded, monkeypatch):
    monkeypatch.setattr(between_steps, "BETWEEN", dict.fromkeys(between_steps.BETWEEN, 1) | {"nothing": 8})
    report = made(loaded, monkeypatch).run(60, lambda _: None, mixed=0.0)
    counts = report["counts"]
    assert soak.sound(report), counts
    assert counts["equal"] and counts["refused"] and counts["cancelled"] and counts["between steps: thread"]
    assert counts["equal"] + counts["refused"] + counts["cancelled"] >= counts["requests"] == 60


@pytest.mark.parametrize("gone", ["check", "lease"])
def test_steps_that_are_not_refused_are_found(loaded, monkeypatch, gone):
    monkeypatch.setattr(between_steps, "BETWEEN", {"nothing": 8, "close": 4, "give back": 4})
    if gone == "check":
        monkeypatch.setattr(Pool, "check", lambda self, prompt: None)
    else:  # a generation that is not counted up
        monkeypatch.setattr(PageOwners, "still_owned", lambda self, numbers, generations: True)
    report = made(loaded, monkeypatch).run(24, lambda _: None, mixed=0.0)
    assert not soak.sound(report) and report["counts"]["not refused"]


def test_a_few_requests_of_the_lab_model_are_written_as_they_pass(tmp_path, monkeypatch):
    given = ["--model", "lab-full", "--device", "cpu", "--requests", "8", "--questions", "2", "--out", str(tmp_path)]
    monkeypatch.setattr(soak, "WAVE", 4)
    monkeypatch.setattr(soak, "PROMPTS", 2)
    monkeypatch.setattr(engines, "TOKENS", 0)
    monkeypatch.setattr(sys, "argv", ["soak", *given, "--seed", "3"])
    with pytest.raises(SystemExit) as ended:
        soak.main()
    rows = results.read(tmp_path).counts("soak").set_index("measure")["value"]
    assert not ended.value.code and rows["requests"] == 8 and rows["sound"] == 1 and rows["not refused"] == 0
