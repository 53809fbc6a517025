"""Methods side by side on the same questions."""

import pytest

from workbench import data
from workbench.core.errors import BadInput
from workbench.experiments.trials.compare import by, explained, paired, table
from workbench.experiments.trials.fidelity import measure
from workbench.methods.modes.full import Full
from workbench.methods.modes.reuse import Reuse


def rows(**columns):
    questions = zip(*columns.values(), strict=True)
    return [{"id": str(i), **dict(zip(columns, values, strict=True))} for i, values in enumerate(questions)]


def test_two_methods_are_compared_question_by_question():
    one, other = rows(em=[1, 1, 0, 1], nll=[1, 2, 3, 4]), rows(em=[1, 0, 0, 0], nll=[2, 3, 4, 5])
    found = paired(one, other[::-1], "em")
    assert (found["one"], found["other"], found["difference"], found["n"]) == (0.75, 0.25, 0.5, 4)
    assert (found["only_one"], found["only_other"], found["p"]) == (2, 0, 0.5)
    losses = paired(one, other, "nll")
    assert (losses["difference"], losses["low"], losses["high"]) == (-1, -1, -1) and "p" not in losses


def test_questions_without_a_score_are_left_out():
    one, other = rows(em=[1, None, 0]), rows(em=[0, None, 0])
    assert paired(one, other, "em")["n"] == 2
    none = paired(rows(em=[None]), rows(em=[None]), "em")
    assert none["n"] == 0 and none["difference"] is none["p"] is None
    assert explained(rows(kl=[1.0], nll=[None]), rows(kl=[2.0], nll=[None])) is None


def test_bits_are_explained_beside_full_attention_on_the_same_questions():
    reuse, method = rows(nll=[4, 6], nll_full=[2, 2], kl=[1, 3]), rows(nll=[3, 5], nll_full=[2, 2], kl=[0.5, 0.5])
    assert explained(method, reuse).share == pytest.approx(1 / 3)
    assert explained(method, reuse, "kl").share == pytest.approx(0.75)
    without = explained(reuse, rows(nll=[2, 2], nll_full=[2, 2], kl=[0, 0]))
    assert without.share is None and "no gap" in without.note


def test_a_table_has_what_was_measured(loaded):
    samples = data.load("lab", 4, 0, 3)
    measured = measure(loaded, samples, {"full": Full(), "reuse": Reuse()}, max_new_tokens=2)
    full, reuse = table(by("method", measured), "reuse")
    assert full["kl"] == pytest.approx(0, abs=1e-6) and full["kl_explained"] == pytest.approx(1, abs=1e-3)
    assert (reuse["kl_explained"], reuse["kl_more_than_reuse"], reuse["n"]) == (0, 0, 4)
    assert full["em"] is full["em_p"] is None and full["full_em"] == 0 == full["answered_compared"]
    assert full["rows"] == full["rows_low"] * 0 + sum(row["tokens"] for row in measured[:4]) / 4 > reuse["rows"]
    assert full["flops"] > reuse["flops"] and full["seconds"] > 0


@pytest.mark.parametrize(
    "call, problem",
    [
        (lambda: paired(rows(em=[1]), rows(em=[1, 0]), "em"), "1 and 2 rows: not of the same questions"),
        (lambda: explained(rows(f1=[1]), rows(f1=[1]), "f1"), "loss 'f1': bits are explained of nll or kl"),
        (lambda: table({"full": []}, "reuse"), "no method is named 'reuse': there are full"),
    ],
)
def test_what_cannot_be_compared_is_refused(call, problem):
    with pytest.raises(BadInput, match=problem):
        call()
