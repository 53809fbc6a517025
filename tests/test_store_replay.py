"""Requests over tiers on a simulated clock, and the figures of the store's notebook."""

from dataclasses import replace

import pandas as pd
import pytest

from tests.refusals import refused
from workbench import data
from workbench.app.explore.panels.latency import store_explorer
from workbench.experiments.latency import ttft
from workbench.experiments.latency.ttft_model import TtftModel
from workbench.experiments.serving import tier_rounds
from workbench.experiments.simulation.store_replay import GB, Machine, kv_bytes, replay, requests_of, summary
from workbench.plots.reports import serving
from workbench.results import schema
from workbench.store.events import SPANS, busy

MODEL = TtftModel(start=5.0, row=0.02, pair=1e-6)
MACHINE = Machine({"GPU": 1.4 * GB, "host": 1.4 * GB, "disk": 1.4 * GB}, per_second=20.0)
REQUESTS = requests_of(1.0, 24, 80, 6)
MODES = ("sync", "request", "layer")


@pytest.fixture(scope="module")
def runs():
    return [replay(REQUESTS, MACHINE, mode, range(40), model=MODEL) for mode in MODES]


def test_every_request_is_served_in_every_mode_and_every_look_up_counted(runs):
    for run in runs:
        assert all(ticket.state == "finished" for ticket in run.tickets) and len(run.tickets) == len(REQUESTS)
        told = summary(run)
        assert told["hits"] + told["misses"] == sum(map(len, REQUESTS)) and told["misses"] > 0
        assert 0 < told["idle"] < 1 and told["ttft_ms"] <= told["ttft_p95"] * 2


def test_the_same_seed_gives_the_same_events_and_another_one_other_arrivals(runs):
    again = replay(REQUESTS, MACHINE, "request", range(40), model=MODEL)
    assert list(again.events) == list(runs[1].events)
    other = replay(REQUESTS, MACHINE, "request", range(40), seed=1, model=MODEL)
    assert [ticket.arrived for ticket in other.tickets] != [ticket.arrived for ticket in again.tickets]


def test_only_loaders_load_while_the_engine_runs(runs):
    for run in runs:
        loads = [event for event in run.events if event.what == "load" and event.seconds > 0]
        runs_ = [event for event in run.events if event.what == "run" and event.seconds > 0]
        over = [load for load in loads for one in runs_ if load.at < one.end - 1e-9 and one.at < load.end - 1e-9]
        assert bool(over) == (run.mode != "sync")
        assert busy(run.events) <= max(event.end for event in run.events)


def test_bytes_are_those_of_the_shape_and_budgets_hold(runs):
    assert kv_bytes(1) == 131_072, "2 x 32 layers x 8 heads x 128 x 2 bytes"
    for run in runs:
        for _, held in run.held:
            assert all(size <= MACHINE.budgets[tier] for tier, size in held.items())
        assert all(event.bytes == kv_bytes(512) for event in run.events if event.what == "hit")


def test_faster_tiers_and_less_work_bring_the_first_token_sooner():
    def first(**more):
        return summary(replay(REQUESTS, replace(MACHINE, **more), "sync", range(80), model=MODEL))["ttft_ms"]

    slow = {"GPU": float("inf"), "host": 5 * GB, "disk": 0.5 * GB}
    assert first() < first(rates=slow) and first() < first(ratio=0.5)
    assert first(reuse=False, per_second=1.0) > first(per_second=1.0)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"budgets": {"GPU": 0}}, "at least one tier of more than 0 bytes is needed"),
        ({"budgets": {"tape": 1}}, "tier 'tape' has no rate: GPU, host, disk have"),
        ({"per_second": 0}, "requests a second and rates are numbers above 0"),
    ],
)
def test_a_wrong_machine_is_one_sentence(fields, sentence):
    refused(sentence, Machine, **fields)


def test_the_timeline_shows_every_stage_of_the_requests_it_names(runs):
    figure = serving.timeline(runs, count=5, machine=serving.about_machine(MACHINE))
    shown = {trace.name for trace in figure.data if trace.name}
    assert {"wait", "load", "prefill", "decode"} <= shown <= set(SPANS)
    bars = [trace for trace in figure.data if trace.type == "bar"]
    assert all(min(trace.base) >= -1e-6 for trace in bars), "no stage begins before the first arrival"


def test_tiers_heat_and_misses_are_those_of_the_events(runs):
    run = runs[1]
    tiers, heat, missed = (draw(run, machine="m") for draw in (serving.tiers_over_time, serving.heat, serving.misses))
    ends = {trace.name: trace.y[-1] for trace in tiers.data[:4] if len(trace.y)}
    assert ends["missed"] == summary(run)["misses"]
    assert sum(ends.values()) == sum(map(len, REQUESTS))
    assert pd.notna(pd.DataFrame(heat.data[0].z)).to_numpy().sum() <= sum(map(len, REQUESTS))
    assert sum(missed.data[0].x) == ends["missed"] and "never seen" in missed.data[0].y


def test_budgets_are_changed_and_replayed_live():
    box = store_explorer(REQUESTS[:6], range(10), MACHINE)
    before = texts_of(box)
    box.children[0].children[1].value = 40
    assert texts_of(box) != before and "host 40 GB" in texts_of(box)
    for control in box.children[0].children[:3]:
        control.value = 0
    assert "at least one tier of more than 0 bytes" in box.children[1].value


def texts_of(box):
    return " ".join(note.text for figure in box.children[3:] for note in figure.layout.annotations)


def test_tiers_are_timed_beside_full_attention(loaded, tmp_path):
    prompts = [ttft.prompt_of_length(96, data.load("lab", 2, 0), loaded.tokenizer, loaded.layout, 16)]
    rows = ttft.over_tiers(loaded, prompts, tmp_path / "blocks", repeats=1)
    assert [row["candidate"] for row in rows][:2] == ["full attention", "reuse, from memory"]
    assert len(rows) == 5 and all(row["ms"] > 0 for row in rows) and rows[1]["bytes"] > 0
    assert {row["workload"] for row in schema.rows("timings", rows, experiment="tiers")} == {str(len(prompts[0]))}


def test_receipts_of_requests_that_are_served_here_tell_each_round(loaded):
    rows = tier_rounds.answer_rounds(loaded, data.load("lab", 2, 0, 3), 2)
    assert [row["round"] for row in rows[::2]] == list(tier_rounds.ROUNDS) and all(row["equal"] for row in rows)
    flat = pd.DataFrame(tier_rounds.flat(rows)).groupby("round").sum(numeric_only=True)
    assert flat.reused["empty tiers"] < flat.reused["again"] and flat.bytes["memory empty, folder full"] > 0
