"""Serving through the scheduler, measured: numbers of every mode, rows of results, options that are refused."""

import json
import math

import numpy as np
import pytest

from tests.commands import refused_command, told
from tests.refusals import refused
from workbench import data, results
from workbench.experiments.serving.serve_bench import measure
from workbench.methods.modes.reuse import Reuse
from workbench.methods.select.first_k import FirstK
from workbench.methods.serving import MODES

QUICK = ("--samples", "4", "--passages", "2", "--max-new-tokens", "2")


@pytest.fixture(scope="module")
def prompts(loaded):
    return loaded.layout.prompts(data.load("lab", 4, 0, 2), loaded.tokenizer)


@pytest.mark.parametrize("engine", ["contiguous", "paged"])
@pytest.mark.parametrize("start", ["cold", "warm", "hot", "empty"])
def test_every_mode_is_measured_over_the_same_blocks(engine, start, loaded, prompts):
    runs = measure(loaded, prompts, start=start, engine=engine, batch=2, max_new_tokens=2)
    assert [run.mode for run in runs] == list(MODES)
    for run in runs:
        assert run.questions == len(run.ttfts) == len(prompts) and run.engine.startswith(engine)
        assert 0 < min(run.ttfts) <= run.ttft_mean <= max(run.ttfts) < run.seconds
        assert run.per_second == len(prompts) / run.seconds and 0 <= run.idle < 1
        assert run.rows_computed == sum(len(prompt.question) for prompt in prompts) / len(prompts)
    assert all(run.hit_rate == 1 for run in runs) if start != "empty" else all(run.hit_rate < 1 for run in runs)


@pytest.mark.parametrize("engine", ["contiguous", "paged"])
def test_recomputed_tokens_are_counted(engine, loaded, prompts):
    (run,) = measure(loaded, prompts, ["layer"], Reuse(select=FirstK(), ratio=0.5), engine=engine, max_new_tokens=1)
    assert run.rows_computed > sum(len(prompt.question) for prompt in prompts) / len(prompts)


def test_questions_that_arrive_one_after_the_other_take_as_long_as_that(loaded, prompts):
    (run,) = measure(loaded, prompts, ["request"], rate=40.0, seed=1, max_new_tokens=1)
    assert run.questions == len(prompts) and run.hit_rate == 1
    assert run.seconds > np.random.default_rng(1).exponential(1 / 40, len(prompts) - 1).sum()


def test_a_failing_request_ends_the_measurement(loaded, prompts, monkeypatch):
    def broken(*_):
        raise RuntimeError("no more memory")

    monkeypatch.setattr("workbench.methods.serving.contiguous.ContiguousEngine.prefill", broken)
    for rate in (None, 1000.0):
        with pytest.raises(RuntimeError, match="no more memory"):
            measure(loaded, prompts, ["sync"], rate=rate)


def test_the_command_prints_and_writes_a_row_a_mode(folder, tmp_path):
    words = ["serve-bench", "--model", folder, *QUICK, "--mode", "sync,layer", "--json", "--out", tmp_path / "mine"]
    said = json.loads(told(*words))
    assert [run["mode"] for run in said["runs"]] == ["sync", "layer"]
    found = results.read(tmp_path / "mine")
    timed, counted = found.timings("serving"), found.counts("serving")
    assert list(timed.candidate) == ["sync", "layer"] and set(timed.workload) == {"first token"}
    for run, row in zip(said["runs"], timed.to_dict("records"), strict=True):
        assert row["ms"] == pytest.approx(1e3 * run["ttft_s"]["p50"]) and len(row["samples"]) == row["runs"] == 4
    assert set(counted.kind) == {"cold"} and set(counted.ratio) == {0.0} and set(counted["select"]) == {"none"}
    rows = counted.assign(scheduler=[json.loads(text)["scheduler"] for text in counted.setting])
    values = rows.pivot(index="scheduler", columns="measure", values="value")
    assert set(values) == {"ttft_ms", "ttft_p50", "ttft_p95", "per_second", "idle", "reused", "rows_computed"}
    for run in said["runs"]:
        assert values.per_second[run["mode"]] == pytest.approx(run["per_second"])
        assert values.reused[run["mode"]] == run["hit_rate"] == 1


def test_without_json_a_table_names_every_mode(folder):
    said = told("serve-bench", "--model", folder, *QUICK)
    assert all(name in said for name in ("sync", "async by request", "async by layer"))


WRONG = {
    "samples": ("--samples", "0"),
    "passages": ("--passages", "0"),
    "rate": ("--rate", "-1"),
    "rate nan": ("--rate", "nan"),
    "batch": ("--batch", "0"),
    "loaders": ("--loaders", "0"),
    "max_new_tokens": ("--max-new-tokens", "0"),
    "mode": ("--mode", "sync,quick"),
    "no mode": ("--mode", ""),
    "start": ("--start", "lukewarm"),
    "engine": ("--engine", "steam"),
    "select": ("--select", "nobody"),
    "ratio": ("--select", "first_k", "--ratio", "2"),
    "data": ("--data", "nowhere.json"),
    "seed": ("--seed", "-1"),
    "tokens": ("--max-new-tokens", "999999999"),
}


@pytest.mark.parametrize("words", WRONG.values(), ids=WRONG)
def test_a_wrong_option_is_one_sentence_and_nothing_is_written(words, folder, tmp_path):
    refused_command("serve-bench", "--model", folder, *words, "--out", tmp_path / "mine")
    assert not (tmp_path / "mine").exists()


def test_wrong_arguments_are_refused_before_any_work(loaded, prompts, monkeypatch):
    monkeypatch.setattr(
        "workbench.experiments.serving.serve_bench.TemporaryDirectory", None
    )  # the first thing that is made
    wrong = [{"modes": []}, {"modes": ["quick"]}, {"rate": 0.0}, {"rate": math.nan}, {"batch": 0}, {"loaders": 0}]
    for options in [*wrong, {"start": "x"}, {"engine": "x"}, {"max_new_tokens": 0}, {"prompts": []}]:
        refused(".", measure, loaded, **{"prompts": prompts, **options})
