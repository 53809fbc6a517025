"""A soak finds what it is for: pages that are lost, pages that change, answers that differ."""

import pytest

from tests import tiny
from tests.stress import soak
from workbench import models
from workbench.data import load
from workbench.engine.pages.paged_pool import Pool
from workbench.methods import engines
from workbench.methods.paged.answers import PagedAnswers


@pytest.fixture
def loaded(tmp_path):
    return models.load(str(tiny.checkpoint(tmp_path / "model")))


def made(loaded, monkeypatch, budget=1 << 18):
    monkeypatch.setattr(soak, "SHARE", 6)
    monkeypatch.setattr(soak, "WAVE", 6)
    prompts = loaded.layout.prompts(load("lab", 3, passages=4), loaded.tokenizer)
    texts = list(dict.fromkeys(block for prompt in prompts for block in prompt.context))
    return soak.Soak(loaded, texts, [prompt.blocks[-1] for prompt in prompts], budget, seed=1)


def test_a_sound_pool_is_found_sound(loaded, monkeypatch):
    monkeypatch.setattr(engines, "LEAST_TOKENS", 0)  # a small pool, which blocks have to leave
    told = []
    report = made(loaded, monkeypatch).run(24, told.append)
    counts = report["counts"]
    assert soak.sound(report) and len(told) == 4 and counts["requests"] == 24
    assert counts["compared"] > 2 and counts["equal"] == counts["compared"]
    assert counts["checksums"] and counts["blocks gone"] and report["store"]["evictions"]
    counts["changed"] = 2
    assert not soak.sound(report)


def test_a_page_that_is_lost_or_changed_is_found(loaded, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(PagedAnswers, "release", lambda self, request: self.blocks.unpin(request.context))
        report = made(loaded, patch).run(6, lambda _: None)
        assert not soak.sound(report) and report["counts"]["pages lost"]
    del loaded.model.__dict__["_workbench_pages"]
    close = Pool.close

    def spoil(self, prompt):
        for block in prompt.context:
            self.keys[0][:, self.slots(block)] += 1.0
        close(self, prompt)

    with monkeypatch.context() as patch:
        patch.setattr(Pool, "close", spoil)
        report = made(loaded, patch).run(18, lambda _: None)
        assert not soak.sound(report) and report["counts"]["changed"]
