"""What is wrong in a list of trials is said before the first of them runs, without a model's weights."""

from dataclasses import asdict

import pytest

from tests.refusals import refused
from workbench import models
from workbench.core.errors import BadInput
from workbench.experiments.sweeps import sweep_grid
from workbench.experiments.sweeps.sweep import cases, sweep
from workbench.experiments.trials.trial import Trial

QUESTIONS = {"samples": 4, "passages": 3, "max_new_tokens": 3, "timed": 1}


@pytest.fixture(scope="module")
def base(folder):
    return Trial(str(folder), **QUESTIONS)


def trials(base, **lists):
    return [case.trial for case in cases(asdict(base), lists)]


@pytest.mark.parametrize(
    "lists, words",
    [
        ({"dtype": [None, "float64"]}, r"unknown dtype 'float64': allowed are float32, .* \(1 trial\)"),
        ({"passages": [3, 40]}, r"has \d+ tokens, the model's context is \d+, answer included: ask for fewer"),
        ({"sparse": ["none", "seer_attention"], "seed": [0, 1]}, r"there is no gate .*distill.*\(2 of 4 trials\)"),
        ({"sparse": ["compact(over=seer_attention)"]}, "there is no gate"),
        ({"sparse": ["xattention(threshold=no.json)"]}, "there are no thresholds 'no.json'"),
        ({"layout": [None, "missing.json"]}, "missing.json"),
        ({"faithfulness": ["lab"], "data": ["manuals"]}, "question"),
        ({"mode": ["block"], "prepared": ["nowhere"]}, "nowhere"),
        ({"device": ["cuda:77"]}, "cuda:77"),
    ],
)
def test_each_problem_is_named_before_a_run(base, lists, words, monkeypatch, tmp_path):
    monkeypatch.setattr(Trial, "run_each", None)
    monkeypatch.setattr(models, "load", None)
    refused(words, sweep, base, tmp_path / "out", **lists)
    assert not (tmp_path / "out").exists()


def test_several_problems_are_told_together_with_their_trials(base):
    listed = trials(base, dtype=[None, "int3"], passages=[3, 400], seed=[0, 1])
    with pytest.raises(BadInput) as problem:
        sweep_grid.check(listed)
    words = str(problem.value)
    assert words.startswith("6 of 8 trials cannot run: ") and words.count(";") >= 1 and "\n" not in words
    assert "unknown dtype 'int3'" in words and "(4 of 8 trials)" in words


def test_what_can_run_passes_and_devices_of_other_machines_are_only_read(base):
    sweep_grid.check(trials(base, mode=["full", "block"], sparse=["none", "bfla"], layout=[None, "lab"]))
    sweep_grid.check(trials(base, mode=["block"], prepare=["with_neighbours(n=2)", "behind_document"]))
    sweep_grid.check(trials(base, mode=["full"], prepare=["with_neighbours(n=40)"]))
    sweep_grid.check(trials(base, device=["cuda:7"]), here=False)
    refused("unknown device 'tpu'", lambda: sweep_grid.check(trials(base, device=["tpu"]), here=False))


def test_what_is_finished_is_not_checked_again(base, tmp_path, monkeypatch):
    table = sweep(base, tmp_path, seed=[0])
    monkeypatch.setattr(sweep_grid, "check", lambda trials, *_, **__: seen.extend(trials))
    seen = []
    assert sweep(base, tmp_path, seed=[0, 1]).trial.nunique() == 2 and len(table)
    assert [trial.seed for trial in seen] == [1]
