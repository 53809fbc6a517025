"""Serving through the scheduler, measured: numbers of every mode, rows of results, options that are refused."""

import json
import math
from contextlib import closing

import numpy as np
import pytest

from tests.commands import refused_command, told
from tests.random_models import block_of
from tests.refusals import refused
from workbench import data, results
from workbench.core.blocks import Prompt
from workbench.experiments.serving.baselines import measure_baselines, reordered
from workbench.experiments.serving.serve_bench import measure
from workbench.methods.generation import generate
from workbench.methods.modes.reuse import Reuse
from workbench.methods.select.first_k import FirstK
from workbench.methods.serving import MODES, Scheduler
from workbench.methods.serving.prefix import PrefixEngine
from workbench.store import MemoryStore

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


# passages of every question by number → their order as reordered; tokens computed of the three, by prefix, reordered
COUNTED = ("prefix", "moved")
ORDERED = {
    "the same": ([[1, 2], [1, 2], [1, 2]], [[1, 2], [1, 2], [1, 2]], [21, 4, 4], [21, 4, 4]),
    "a shared beginning": ([[1, 2], [1, 3], [3, 1]], [[1, 2], [1, 3], [1, 3]], [21, 10, 16], [21, 10, 4]),
    "nothing shared": ([[1, 2], [3, 4], [5, 6]], [[1, 2], [3, 4], [5, 6]], [21, 16, 16], [21, 16, 16]),
    "a passage twice": ([[1, 1], [2, 1], [1, 2]], [[1, 1], [1, 2], [1, 2]], [21, 16, 10], [21, 10, 4]),
}


@pytest.mark.parametrize(("asked", "put", *COUNTED), ORDERED.values(), ids=ORDERED)
@pytest.mark.parametrize("which", COUNTED)
def test_prefix_caches_answer_as_full_attention_and_compute_what_stands_behind_the_prefix(
    which, asked, put, prefix, moved, loaded
):
    blocks = [block_of(5, 9), *(block_of(6, seed) for seed in range(1, 7))]
    prompts = [Prompt((blocks[0], *(blocks[i] for i in each), block_of(4, 20 + n))) for n, each in enumerate(asked)]
    if which == "moved":
        prompts = reordered(prompts, system=1)
        assert [[blocks.index(block) for block in prompt.context[1:]] for prompt in prompts] == put
    engine = PrefixEngine(loaded.model, loaded.tokenizer, MemoryStore())
    with closing(Scheduler(engine, "request", batch=1)) as scheduler:
        answers = [ticket.result(0) for ticket in scheduler.run(prompts, 4)]
    whole = generate(loaded.model, loaded.tokenizer, prompts, "full", max_new_tokens=4)
    assert [answer.tokens for answer in answers] == [answer.tokens for answer in whole]
    assert [answer.rows_computed + answer.rows_reused for answer in answers] == list(map(len, prompts))
    assert [answer.rows_computed for answer in answers] == {"prefix": prefix, "moved": moved}[which]


def test_baselines_are_measured_over_the_same_questions(loaded, prompts):
    runs = measure_baselines(loaded, prompts, ["full", "prefix", "reordered"], system=1, batch=1, max_new_tokens=1)
    assert [run.name for run in runs] == ["full prefill", "prefix caching", "reordered prefix caching"]
    full, prefix, moved = runs
    assert full.rows_computed == sum(map(len, prompts)) / len(prompts) and full.hit_rate == 0
    assert moved.rows_computed <= prefix.rows_computed < full.rows_computed and moved.hit_rate >= prefix.hit_rate > 0


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


def test_the_command_prints_and_writes_baselines_beside_the_modes(folder, tmp_path):
    words = [folder, *QUICK, "--select", "first_k", "--mode", "layer", "--baselines", "prefix,full"]
    said = json.loads(told("serve-bench", "--model", *words, "--json", "--out", tmp_path / "mine"))
    methods = ["reuse", "prefix caching", "full prefill"]
    assert said["start"] == "empty" and said["runs"][0]["hit_rate"] < 1, "as the baselines start"
    assert [run["method"] for run in said["runs"]] == methods
    found = results.read(tmp_path / "mine")
    assert list(found.timings("serving").candidate) == ["layer", *methods[1:]]
    rows = found.counts("serving").query("measure == 'rows_computed'").set_index("method")
    assert list(rows.value) == [run["rows_computed"] for run in said["runs"]]
    about = rows[["kind", "mode", "select", "ratio"]].agg(tuple, axis=1).to_dict()
    assert about == {"reuse": ("empty", "block", "first_k", 0.15)} | dict.fromkeys(methods[1:], ("", "full", "none", 0))
    printed = told("serve-bench", "--model", *words)
    assert all(name in printed for name in ("async by layer", *methods[1:], "start empty"))


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
    "baseline": ("--baselines", "prefix,radix"),
    "none and a baseline": ("--baselines", "none,full"),
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
    refused("unknown baseline 'radix'", measure_baselines, loaded, prompts, ["full", "radix"])
