"""Methods up to a first token: that they agree, what they cost, where their time goes."""

import numpy as np
import pytest
import torch

from tests.random_models import model_of, prompt_of
from tests.refusals import refused
from workbench.experiments.latency import ttft, ttft_model
from workbench.methods import sparse
from workbench.methods.generation import first_token
from workbench.methods.modes.full import Full
from workbench.methods.modes.reuse import Reuse
from workbench.methods.select.query_guided import QueryGuided
from workbench.metrics import cost
from workbench.metrics.stages import STAGES, Stopwatch, stages
from workbench.store import fetch

MODEL = model_of("llama")
PROMPT = prompt_of(30, 20, 25, 10)  # the last block is the question


@pytest.fixture(scope="module")
def store():
    return ttft.filled_store(MODEL, PROMPT.context)


def test_stock_shares_every_weight_and_leaves_the_model_alone():
    stock = ttft.stock_of(MODEL)
    assert all(a is b for a, b in zip(stock.parameters(), MODEL.parameters(), strict=True))
    first_token(MODEL, PROMPT)
    assert stock.config._attn_implementation == "sdpa" != MODEL.config._attn_implementation


def test_every_method_answers_repeatedly(store):
    jobs = ttft.jobs_of(MODEL, PROMPT, store)
    assert tuple(jobs) == ttft.METHODS
    for _ in range(2):
        assert jobs["full"]() == jobs["stock full"]() == jobs["stock prefix"]()
        assert jobs["block"]() == first_token(MODEL, PROMPT, "block", store)
    refused("no_such", ttft.jobs_of, MODEL, PROMPT, store, methods=["no_such"])


def test_jobs_run_interleaved():
    ran = []
    times = ttft.interleaved({name: lambda name=name: ran.append(name) for name in "ab"}, torch.device("cpu"), 2)
    assert "".join(ran) == "aa" + "bb" + "ab", "one run of each to warm up"
    assert all(time.n == 2 and 0 <= time.p5 <= time.p50 <= time.p95 for time in times.values())


def test_costs_stand_beside_times():
    rows = {row["way"]: row for row in ttft.by_length(MODEL, [PROMPT], 1)}
    full, block = rows["full"], rows["block"]
    expected = cost.first_token(cost.shape_of(MODEL), range(len(PROMPT)), len(PROMPT), 4)
    assert full["flops"] == rows["stock full"]["flops"] == pytest.approx(expected.flops)
    assert block["flops"] == rows["stock prefix"]["flops"] < rows["recompute"]["flops"] < full["flops"]
    assert all(row["length"] == len(PROMPT) and row["p50"] > 0 for row in rows.values())


def test_a_part_of_a_store_finds_and_misses_the_same_each_time(store):
    view = ttft.partial_store(MODEL, PROMPT.context, store, 2)
    hits = []
    view_get = view.get
    view.get = lambda key: hits.append(view_get(key) is not None) or view_get(key)
    for _ in range(2):
        cached = fetch(MODEL, PROMPT.context, view)
        torch.testing.assert_close(cached[2].keys[0], fetch(MODEL, PROMPT.context, store)[2].keys[0])
    assert sorted(hits[:3]) == sorted(hits[3:]) == [False, True, True]


def test_what_is_not_cached_is_encoded_within_the_request():
    rows = ttft.by_cached_share(MODEL, PROMPT, [0, 0.4, 1], 1)
    assert [row["blocks"] for row in rows] == [0, 1, 3]
    assert [row["share"] for row in rows] == pytest.approx([0, 30 / 75, 1])
    flops = [row["flops"] for row in rows]
    assert flops == sorted(flops, reverse=True) and len(set(flops)) == 3


def test_a_ratio_costs_its_rows_and_the_choice_of_them():
    rows = ttft.by_ratio(MODEL, PROMPT, [0, 0.2, 1], 1, QueryGuided())
    assert [row["rows"] for row in rows][::2] == [10, 10 + 45], "the first block is the system's"
    assert [row["flops"] for row in rows] == sorted(row["flops"] for row in rows)


@pytest.mark.parametrize("length", [60, 500])
def test_computed_costs_agree_with_counted_rows(length):
    shape = cost.shape_of(MODEL)
    rows = {row["way"]: row for row in ttft_model.computed(shape, [length], 2, 50, ratio=0.2)}
    assert rows["full"]["flops"] == pytest.approx(cost.first_token(shape, range(length), length, 2).flops)
    assert rows["block"]["flops"] < rows["recompute"]["flops"] < rows["full"]["flops"]
    half = cost.first_token(shape, np.arange(length - 50, length), length, 2)
    assert rows["block"]["bytes"] == half.bytes


def test_a_method_that_is_named_a_way_is_taken_still(store):
    assert list(ttft.jobs_of(MODEL, PROMPT, store, methods=["full"])) == ["full"]


def test_costs_of_full_and_block_are_told_apart():
    records = ttft.by_length(MODEL, [PROMPT], 1, methods=ttft_model.MODES)
    assert [(record["way"], record["n"]) for record in records] == [("full", 1), ("block", 1)]
    shape = cost.shape_of(MODEL)
    full, block, _ = ttft_model.computed(shape, [500], 2)
    assert (full["way"], block["way"]) == ("full", "block") and full["kv_loaded"] == 0 < block["kv_loaded"]
    assert block["convention"] == cost.convention(shape.convention, 50) and full["linear"] > block["linear"]


def test_ceilings_are_those_of_the_device():
    roof = ttft.ceilings(torch.device("cpu"), torch.float32, repeats=1)
    assert roof.copy > 1e7 and roof.product > 1e7


def test_time_of_an_inner_stage_is_its_own(monkeypatch):
    now = iter(range(100))
    monkeypatch.setattr("time.perf_counter", lambda: float(next(now)))
    watch = Stopwatch(torch.device("cpu"))
    with watch.stage("rest"), watch.stage("attend"), watch.stage("choose"):
        assert watch.inside("attend") and watch.inside("choose")
    assert watch.seconds == {"place": 0, "choose": 1, "attend": 2, "rest": 2} and not watch.inside("rest")


@pytest.mark.parametrize("name", ["full", "block", "select", "sparse"])
def test_stages_are_split_and_the_answer_stays(store, name):
    method = {
        "full": Full(),
        "block": Reuse(),
        "select": Reuse(select=QueryGuided(), ratio=0.2),
        "sparse": Full(sparse=sparse.from_spec("random(block=16, share=0.3)")),
    }[name]
    before = first_token(MODEL, PROMPT, method, store)
    found = stages(MODEL, PROMPT, method, store, repeats=1)
    assert set(found.seconds) == set(STAGES) and min(found.seconds["attend"], found.seconds["rest"]) > 0
    assert (found.seconds["choose"] > 0) == (name in ("select", "sparse"))
    assert (found.density < 1) == (name == "sparse") and found.density > 0
    assert first_token(MODEL, PROMPT, method, store) == before
