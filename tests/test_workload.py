"""Simulated requests and caches: what is drawn, what is found, what it takes, and from where on what is faster."""

import json
from dataclasses import asdict, replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.refusals import refused
from workbench import results
from workbench.experiments.latency.ttft_model import TtftModel, fit_ttft
from workbench.experiments.simulation import break_even, workload
from workbench.experiments.simulation.break_even import PREFIX, RECOMPUTED, REORDERED, REUSE
from workbench.experiments.simulation.simulated_caches import (
    BlockCache,
    PathCache,
    PrefixCache,
    ReorderedPrefixCache,
    beside_prefix,
    count_lookups,
    replay,
)
from workbench.experiments.simulation.workload import Workload

SMALL = Workload(queries=60, passages=(2, 4), knowledge=30, uploads=20)
REQUESTS = st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=4, unique=True), max_size=12)
MODEL = TtftModel(start=1.0, row=0.1, pair=1e-6)


def found(cache, requests, prepared=()):
    return [[hit for _, hit in served] for served in replay(cache, requests, prepared)]


def test_requests_have_the_shares_that_were_asked_for_and_no_passage_twice():
    drawn = Workload(queries=400).requests(1)
    assert all(5 <= len(request) == len(set(request)) <= 10 for request in drawn)
    numbers = np.concatenate(drawn)
    known, shared = (numbers < 1_000).mean(), ((numbers >= 1_000) & (numbers < 2_000)).mean()
    assert known == pytest.approx(0.6, abs=0.03) and shared == pytest.approx(0.3, abs=0.03)
    once = numbers[numbers >= 2_000]
    assert len(set(once)) == len(once), "unique passages are asked for once"
    assert drawn == Workload(queries=400).requests(1) != Workload(queries=400).requests(2)


def test_orders_are_of_the_same_passages():
    fixed, scored, shuffled = (replace(SMALL, order=order).requests() for order in ("fixed", "relevance", "shuffled"))
    assert fixed == [sorted(request) for request in scored] == [sorted(request) for request in shuffled]
    assert scored != shuffled


def test_repeated_requests_are_those_of_before():
    drawn = replace(SMALL, repeats=0.8).requests()
    assert len({tuple(request) for request in drawn}) < len(drawn) / 2


@given(REQUESTS)
def test_caches_find_what_alternative_path_or_a_list_of_beginnings_finds(requests):
    assert found(BlockCache(), requests) == found(PathCache(), requests)
    seen = set()
    for request, hits in zip(requests, found(PrefixCache(), requests), strict=True):
        assert hits == [tuple(request[: at + 1]) in seen for at in range(len(request))]
        seen |= {tuple(request[: at + 1]) for at in range(len(request))}
    alone = [[passage] for request in requests for passage in request]
    assert found(ReorderedPrefixCache(), alone) == found(PrefixCache(), alone)


@given(REQUESTS, st.integers(1, 6))
def test_budgets_hold_and_drop_the_end_of_a_prefix_before_its_beginning(requests, budget):
    for cache in (PrefixCache(budget), ReorderedPrefixCache(budget), BlockCache(budget)):
        for request in requests:
            served = cache.serve(request)
            assert len(cache) <= budget and sorted(p for p, _ in served) == sorted(request)
            if not isinstance(cache, BlockCache):
                hits = [hit for _, hit in served]
                assert hits == sorted(hits, reverse=True), "nothing is found behind what is not"


def test_reordering_finds_shuffled_passages_again():
    shuffled = [[1, 2, 3], [3, 1, 2], [2, 3, 1]]
    assert sum(map(sum, found(PrefixCache(), shuffled))) == 0
    assert sum(map(sum, found(ReorderedPrefixCache(), shuffled))) == 6


def test_what_is_computed_again_and_kept_is_counted_against_a_prefix_cache():
    requests, prepared = [[1, 2], [2, 1], [1, 2]], [1]
    plain, path = PrefixCache(), PathCache()
    prefix = count_lookups(replay(plain, requests, prepared), len(plain), prepared)
    block = count_lookups(replay(path, requests, prepared), len(path), prepared)
    assert prefix == {"lookups": 6, "hits": 3, "hit_rate": 0.5, "computed": 3, "recomputed": 2, "kept": 4}
    assert block["recomputed"] == 0 and block["computed"] == 1 and block["kept"] == 2
    saved = {"storage_saved": 0.5, "redundant_removed": 1.0, "computation_saved": 1 - 1 / 3}
    assert beside_prefix(block, prefix) == pytest.approx(saved)


def test_the_papers_workload_has_a_row_a_cache_and_measure_with_intervals_over_seeds():
    rows = workload.counts(SMALL, range(2))
    assert len(rows) == len(workload.CACHES) * len(workload.MEASURES)
    found = {(row["method"], row["measure"]): row for row in rows}
    path, prefix = (found[name, "hit_rate"] for name in (workload.PATH, workload.UNBOUNDED))
    assert path["value"] > prefix["value"] and found[workload.PATH, "redundant_removed"]["value"] == 1
    assert path["low"] < path["value"] < path["high"] and path["n"] == 2
    assert results.schema.rows("counts", rows, experiment="workload")[0]["setting"] == json.dumps(
        {**asdict(SMALL), "passages": "2 to 4", "shares": "0.6 to 0.3"}, sort_keys=True
    )


def test_shipped_settings_differ_from_the_usual_one_in_one_field():
    counts = results.read().counts("workload")
    settings = results.vary_one(results.expand_settings(counts), workload.FIELDS)
    assert len(settings) == len(counts) and {"usual", "zipf 0.0", "passages 5 to 5"} < set(settings.varied)
    assert settings.groupby("varied").size().nunique() == 1


def test_times_are_fitted_to_the_shipped_reports_within_a_fifth():
    model = fit_ttft()
    assert min(model.start, model.row, model.pair) > 0 and model.gpu and model.worst_error < 0.2
    assert model.prefix(5120, 0, 50) == model.blocks(5120, 0, 50, 0.0, 512), "all found: the question alone"
    assert model.prefix(0, 5120, 50) > model.blocks(5120, 0, 50, 0.15, 512) > model.blocks(5120, 0, 50, 0.0, 512)


def test_a_request_that_computes_nothing_again_is_timed_by_its_own_report():
    works = [point.work for point in fit_ttft().points]
    assert not [work for work in works if "0% of 27K" in work and "30%" not in work]
    assert {"question", "recompute", "prefill"} == {work.partition(":")[0] for work in works}


def test_too_few_measured_times_are_refused():
    refused("0 times in no reports: three numbers need at least 3", fit_ttft, results.read().timings("session"))


@settings(max_examples=20, deadline=None)
@given(st.floats(0, 1), st.integers(1, 500))
def test_a_request_never_takes_less_when_less_is_found(share, question):
    tokens = 4096.0
    for ratio in (0.0, 0.15):
        times = [float(MODEL.blocks(tokens * s, tokens * (1 - s), question, ratio, 512)) for s in (share, share * 0.9)]
        assert times[0] <= times[1] + 1e-9
    prefix = [float(MODEL.prefix(tokens * s, tokens * (1 - s), question)) for s in (share, share * 0.9)]
    assert prefix[0] <= prefix[1] + 1e-9


def test_every_setting_has_a_row_a_method_question_and_measure():
    workloads = break_even.workloads([1.0], ["fixed"], [50], [0.0, 0.5])
    assert [workload.repeats for workload in workloads] == [0.0, 0.5]
    rows = break_even.counts(workloads[0], [50, 100], MODEL, range(2))
    assert len(rows) == 2 * len(break_even.METHODS) * len(break_even.MEASURES)
    assert len(results.schema.rows("counts", rows, experiment="break-even")) == len(rows), "a table takes them"
    assert {row["setting"]["question"] for row in rows} == {50, 100} and {row["n"] for row in rows} == {2}
    assert all(0 <= row["value"] <= 1 for row in rows if row["measure"] == "hit_rate")
    assert {row["method"] for row in rows if row.get("ratio")} == {RECOMPUTED}


@pytest.mark.parametrize(("gaps", "where"), [([2, 1, -1], 1.5), ([-1, -2, -3], 0.0), ([1, 1, 1], None)])
def test_a_crossing_lies_between_two_points(gaps, where):
    rows = [{"zipf": float(z), "method": PREFIX, "value": 5.0 + gap} for z, gap in enumerate(gaps)]
    rows += [{"zipf": float(z), "method": REUSE, "value": 5.0} for z in range(len(gaps))]
    times = pd.DataFrame(rows)
    assert break_even.crossing(times, PREFIX, REUSE) == where
    (row,) = break_even.crossings(times.assign(order="fixed"), ["order"]).to_dict("records")
    assert (row["order"], row["prefix"], row["reuse"]) == ("fixed", PREFIX, REUSE)
    assert row["zipf"] == where or (where is None and np.isnan(row["zipf"]))


def test_the_shipped_break_even_compares_all_methods_on_the_same_requests():
    counts = results.read().counts("break-even")
    assert set(counts.groupby(["setting", "measure"]).method.agg(frozenset)) == {frozenset(break_even.METHODS)}
    wide = counts.pivot(index=["setting", "measure"], columns="method", values="value")
    hits, times = (wide.xs(measure, level="measure") for measure in break_even.MEASURES)
    assert (hits[REUSE] == hits[RECOMPUTED]).all() and (times[REUSE] < times[RECOMPUTED]).all()
    assert (hits[REORDERED] >= 0).all()


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"order": "random"}, "order is 'random': allowed are fixed, relevance, shuffled"),
        ({"queries": 0}, "queries is 0"),
        ({"passages": (3, 2)}, "passages 3 to 2"),
        ({"shares": (0.9, 0.3)}, "shares"),
        ({"repeats": -0.1}, "repeats -0.1"),
        ({"uploads": 0}, "a share of 0.3 is of uploads, and there are none"),
    ],
)
def test_a_wrong_workload_is_one_sentence(fields, sentence):
    refused(sentence.replace("(", r"\("), replace, SMALL, **fields)
