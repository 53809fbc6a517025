"""Evidence of a real model for the papers: what decides, and block fine-tuning on made-up losses."""

import pandas as pd
import pytest

from workbench.experiments.papers import block_attention_real as block
from workbench.experiments.papers import evidence
from workbench.experiments.papers.verdicts import CONFIRMED, CONTRADICTED, judge


def losses(models, data="nq", questions=100):
    """Losses by model and method, a little more at every other question."""
    rows = [
        {"model": model, "data": data, "trial": trial, "id": f"q{i}", "passages": 10}
        | {"kl": loss * (1 + i % 2 / 10), "nll": 2 + loss * (1 + i % 2 / 10)}
        for model, methods in models.items()
        for trial, loss in methods.items()
        for i in range(questions)
    ]
    return pd.DataFrame(rows)


@pytest.fixture
def measured(monkeypatch):
    def of(table):
        monkeypatch.setattr(evidence, "real_questions", lambda: table)
        monkeypatch.setattr(block, "real_questions", lambda: table)

    return of


def test_a_model_that_was_fine_tuned_for_blocks_is_shown_beside_those_that_decide(measured):
    methods = {"ours": 0.1, "theirs": 0.2}
    measured(losses({"smollm2": methods, "smollm2-block": {"ours": 0.2, "theirs": 0.1}}))
    found = evidence.real_gap("ours over theirs", "ours", "theirs")
    assert [(f.decides, f.verdict) for f in found] == [(True, CONFIRMED), (False, CONTRADICTED)]
    assert judge(found) == CONFIRMED
    assert not evidence.tuned_for_blocks("smollm2 on nq") and evidence.tuned_for_blocks("smollm2-block on nq")


def both(plain, healed, full=0.0):
    return losses({block.BASE: {"full": 0.0, "independent": plain}, block.TUNED: {"full": full, "independent": healed}})


def test_fine_tuning_that_helps_confirms_and_one_that_harms_contradicts(measured):
    measured(both(0.8, 0.1))
    assert judge(block.quality(0.5)) == CONFIRMED
    (share,) = (f for f in block.quality(0.5) if "won back" in f.what)
    assert share.value == pytest.approx(0.875) and not share.decides
    measured(both(0.8, 0.9))
    assert judge(block.quality(0.5)) == CONTRADICTED


def test_full_attention_after_fine_tuning_is_held_to_what_it_was_before(measured):
    measured(both(0.8, 0.1, full=-0.1))
    (told,) = block.both_modes()
    assert told.value == pytest.approx(-0.105) and told.verdict == CONFIRMED and not told.decides
    measured(both(0.8, 0.1, full=0.1))
    assert block.both_modes()[0].verdict == CONTRADICTED


def test_few_questions_are_no_evidence(measured):
    measured(both(0.8, 0.1).query("id < 'q5'"))
    assert block.quality(0.5) == [] == block.both_modes()


def test_the_shipped_runs_decide_the_ablation_and_the_curve():
    (ablation,) = block.positions()
    first, last = block.tuning()
    assert ablation.decides and ablation.low < ablation.value < ablation.high
    assert (first.side, last.side) == ("above", "below") and first.n == last.n >= 100
