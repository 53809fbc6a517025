"""What block fine-tuning changes, in sentences of made-up losses and with their signs reversed; and what ships."""

import pandas as pd
import pytest

from workbench.experiments import results
from workbench.metrics.paired import Difference, Explained
from workbench.plots import real_tuned as tuned
from workbench.plots import real_tuning as tuning
from workbench.plots.real_results import Real

TRIALS = {  # trial → mode, positions, preparation, selector
    tuned.FULL: ("full", "re-encoded", "independent", "none"),
    tuned.NAIVE: ("block", "naive", "independent", "none"),
    tuned.BLOCK: ("block", "re-encoded", "independent", "none"),
    tuned.HEALED: ("block", "re-encoded", "independent", "answer_guided"),
}
BEFORE = {tuned.FULL: 0.0, tuned.NAIVE: 0.6, tuned.BLOCK: 0.4, tuned.HEALED: 0.2}
AFTER = {tuned.FULL: 0.0, tuned.NAIVE: 0.3, tuned.BLOCK: 0.1, tuned.HEALED: 0.02}


def real(model, losses, full=2.0, questions=8):
    """A model of made-up losses on one data set; `full` is the likelihood of the gold answer in full mode."""
    about = {"data": "nq", "kind": "all", "group": "few", "passages": 10, "note": "4-bit.", "seed": 5, "ratio": 0.15}
    about |= {"model": model, "device": "some GPU", "n": questions, "sparse": "none"}
    names = ("mode", "positions", "prepare", "select")
    table = [about | {"trial": trial} | dict(zip(names, TRIALS[trial], strict=True)) for trial in losses]
    rows = [
        {"id": f"q{i}", "trial": trial, "kl": loss * (1 + i % 2 / 10), "nll": full + loss * (1 + i % 2 / 10)}
        for trial, loss in losses.items()
        for i in range(questions)
    ]
    scores = pd.DataFrame(rows).assign(model=model, data="nq", passages=10)
    return Real(model, "nq", pd.DataFrame(table), scores)


def pair(after=AFTER, before=BEFORE, **cost):
    (made,) = tuned.pairs(real("tiny", before), real("tiny-block", after, **cost))
    return made


def text_of(figure, place):
    return figure.layout.annotations[place].text.replace("<br>", " ")


def test_what_was_asked_is_held_or_missed():
    assert tuned.told_bars(pair()) == ["held", "held", "held"]
    assert tuned.told_bars(pair(BEFORE, AFTER)) == ["missed", "missed", "held"]
    assert tuned.told_bars(pair(full=2.1))[2] == "missed" and tuned.told_bars(pair(full=1.9))[2] == "held"
    assert tuned.told_bars(pair(full=2.1))[1] == "missed", "held to full attention before"
    assert tuned.share_bar(Explained(8, -0.1, None, None, None, "no gap"), 0.5) == "no gap"


@pytest.mark.parametrize(("mean", "said"), [(0.01, "held, interval beyond"), (0.03, "missed, interval beyond")])
def test_an_interval_that_holds_the_bar_is_said(mean, said):
    assert tuned.full_bar(Difference(8, mean, mean - 0.05, mean + 0.05)) == said


def test_questions_of_one_model_alone_do_not_count():
    (made,) = tuned.pairs(real("tiny", BEFORE), real("tiny-block", AFTER, questions=6))
    assert len(made.ids) == 6 and made.kl(made.before, tuned.BLOCK).n == 6


def test_a_model_that_was_not_measured_has_no_pairs():
    assert tuned.read(real("tiny", BEFORE), "tiny-block") == []


def run(kl, full=0.01):
    scores = [{"step": step, "n": 8} for step in (0, 100)]
    for row, value in zip(scores, (0.4, kl), strict=True):
        for mode, loss in (("block", value), ("full", full)):
            row[mode] = {f"{m}{end}": loss + d for m in ("kl", "nll_gap") for end, d in ENDS.items()}
    return {"scores": scores}


ENDS = {"": 0.0, "_low": -0.02, "_high": 0.02}


def test_figures_are_drawn_with_both_models():
    made = pair()
    assert "100% [" in str(tuned.bars_table([pair(AFTER | {tuned.BLOCK: 0.0})]).data[0].cells["values"])
    figure = tuned.methods_before_and_after(made)
    assert {trace.name for trace in figure.data} == {"before", "fine-tuned"}
    assert "tiny and tiny-block, seed 5" in text_of(figure, -1)
    names = {trace.name for trace in tuning.held_out({"block": run(0.1)}).data if trace.name}
    assert names == {"block mode", "full attention"}


def test_what_ships_holds_what_was_asked_of_it():
    measured = tuned.read(Real.read(), "smollm2-block")
    assert {each.before.data for each in measured} >= {"nq", "hotpotqa", "manuals"}
    for each in measured:
        told = tuned.told_bars(each)
        assert all(word.startswith("held") for word in told), (each.before.data, told)
    runs = {name: results.read(f"smollm2-{name}") for name in ("block", "naive")}
    assert runs["block"]["scores"][-1]["step"] == runs["naive"]["scores"][-1]["step"]
