"""Records, figures and sentences of the notebooks on sparse attention, on small states and made-up tables."""

from statistics import fmean

import pytest
import torch
from transformers import LlamaConfig

from tests.refusals import refused
from workbench import data as datasets
from workbench import models
from workbench.core.errors import BadInput
from workbench.methods import sparse
from workbench.methods.sparse.compact import Compact
from workbench.metrics.published_numbers import LLAMA_3_8B
from workbench.metrics.tiles import crossover, thresholds, tile_recall, tile_states
from workbench.metrics.tiles.tile_states import States, synthetic_states
from workbench.plots.marks.theme import TEMPLATE
from workbench.plots.tiles import sparse_masks, tile_overview

LENGTH, SIZE = 203, 16
SPECS = {"window and sink": f"window(block={SIZE}, local=2)", "oracle": f"oracle(block={SIZE}, mass=0.5)"}


@pytest.fixture(scope="module")
def states() -> States:
    torch.manual_seed(0)
    keys = {i: torch.randn(2, LENGTH, 16) for i in (0, 2)}
    return States({i: 2 * torch.randn(4, LENGTH, 16) for i in keys}, keys)


@pytest.fixture(scope="module")
def methods() -> dict:
    return {name: sparse.named(spec) for name, spec in SPECS.items()}


@pytest.fixture(scope="module")
def choices(states, methods):
    return tile_recall.by_layer(states, methods, 0.7)


@pytest.fixture(scope="module")
def best(states):
    return {i: tile_recall.needed(states, i, SIZE, 0.7) for i in states.layers}


def test_shares_of_every_method_layer_and_head(choices):
    found = tile_recall.shares(choices)
    assert list(found) == ["density", "attention", "missed"] and list(found["density"]) == list(SPECS)
    for name, layers in choices.items():
        for at, choice in enumerate(layers.values()):
            assert torch.equal(found["density"][name][at], choice.density())
            assert torch.equal(found["attention"][name][at], choice.held())
            assert torch.equal(found["missed"][name][at], choice.held(choice.missed))
    records = tile_recall.head_records(found, [0, 2])
    assert len(records) == 2 * 2 * 4 and records[5] | {"method": "", "density": 0, "attention": 0, "missed": 0} == {
        "method": "",
        "layer": 2,
        "head": 1,
        "density": 0,
        "attention": 0,
        "missed": 0,
    }
    assert records[5]["attention"] == float(found["attention"]["window and sink"][1, 1])
    numbers = tile_recall.summary(choices)
    assert list(numbers) == ["density", "attention_kept", "attention_missed", "seconds_to_choose"]
    own = [r["missed"] for r in records if r["method"] == "oracle"]
    assert numbers["attention_missed"]["oracle"] == pytest.approx(fmean(own))
    assert numbers["seconds_to_choose"]["oracle"] == sum(c.seconds for c in choices["oracle"].values())


def test_the_head_where_most_is_missed_is_shown_unless_another_is_asked_for(choices, best):
    missed = tile_recall.shares(choices)["missed"]
    needs = torch.stack([choice.density() for choice in best.values()])
    worst = divmod(int(((missed["window and sink"] + missed["oracle"]) / needs).argmax()), 4)
    assert tile_recall.most_missed(choices, best) == ([0, 2][worst[0]], worst[1])
    assert tile_recall.most_missed(choices, best, layer=2, head=0) == (2, 0)
    with pytest.raises(BadInput, match=r"layer 1, head 0: there are layers \[0, 2\] of 4 heads"):
        tile_recall.most_missed(choices, best, layer=1, head=0)
    refused("head 4", tile_recall.most_missed, choices, best, head=4)


def test_thresholds_go_from_few_tiles_to_many_and_end_with_the_oracle(states, methods):
    records = tile_recall.threshold_records(states, {"window and sink": methods["window and sink"]}, SIZE, 0.7)
    option, values = methods["window and sink"].threshold_steps
    assert [r["value"] for r in records] == [*values, *tile_recall.ORACLE] and records[0]["option"] == option
    density = [r["density"] for r in records if r["method"] == "window and sink"]
    assert density == sorted(density)
    turned = methods["window and sink"].with_threshold(values[1])
    by_hand = fmean(tile_recall.chosen(states, i, turned, 0.7).record()["mass"] for i in states.layers)
    assert records[1]["mass"] == pytest.approx(by_hand)
    assert records[-1]["method"] == "oracle" and records[-1]["mass"] >= 0.99


def test_rules_and_unions_become_records_by_layer(states):
    bfla = sparse.named("bfla(block=16, tile=8, flat=4, mass=0.3, local=1, sink=1, stride=5, random=0.1)")
    why = {i: tile_recall.bfla_rules(states, i, bfla) for i in states.layers}
    records = tile_recall.rule_records(why)
    assert [r["layer"] for r in records] == [0] * 5 + [2] * 5
    assert (records[6]["density"], records[6]["attention"]) == why[2].added["local"]
    averages = tile_recall.means(records, "rule", ("density", "attention"))
    assert averages["sink"]["density"] == fmean(why[i].added["sink"][0] for i in (0, 2))
    unions = {i: tile_states.union(states, i, sparse.named(SPECS["oracle"]), slice(64, 128)) for i in states.layers}
    steps = tile_recall.union_records(unions)
    assert [r["step"] for r in steps[4:]] == list(tile_recall.UNION_STEPS)
    assert [r["density"] for r in steps[4:]] == unions[2].densities()


def test_a_long_prompt_is_framed_near_its_end():
    long = synthetic_states(1024)
    found = tile_recall.framed(long, sparse.named("window(block=32, local=2)"), tokens=256, share=0.8)
    assert [part.rows for part in found.frames] == [slice(24, 32)] * 2, "the frame stays inside"
    record = found.record(1)
    assert record["density"] == pytest.approx(record["tiles"] / (32 * 33 / 2))
    assert record["attention"] == found.frames[1].held() and record["missed"] == found.frames[1].missed()
    wide = tile_recall.framed(long, sparse.named("window(block=32, local=2)"), tokens=4096)
    assert wide.frames[0].rows == slice(0, 32), "no more than there is"


# --- figures of a sparse choice
def check(figure) -> None:
    """What every figure keeps: the template, title and caption, and JSON without 16-bit floats."""
    title, _, caption = (note.text for note in figure.layout.annotations[-3:])
    assert figure.layout.template == TEMPLATE and figure.data
    assert title.startswith("<b>") and caption and '"f2"' not in figure.to_json()


def test_methods_are_named_once_and_some_need_nothing_fitted():
    specs = sparse_masks.named_specs(["window", "seer_attention"], 16)
    assert specs["window and sink"] == "window(block=16, local=9)"
    assert list(sparse_masks.unfitted(specs)) == ["window and sink"]
    for methods in ([], ["window", "window"]):
        refused("name at least one, and each only once", sparse_masks.named_specs, methods, 16)
    with pytest.raises(BadInput, match="at least one must need nothing that was fitted"):
        sparse_masks.unfitted({"SeerAttention": "seer_attention"})


def test_the_threshold_slider_steps_through_the_first_method_that_has_one(states, methods):
    both = {"all tiles": sparse.named(f"dense(block={SIZE})"), **methods}
    specs = {"all tiles": f"dense(block={SIZE})", **SPECS}
    records = tile_recall.threshold_records(states, both, SIZE, 0.7)
    given = {"share": 0.7, "layer": 2, "head": 1, "about": "About"}
    figure = sparse_masks.threshold_slider(states, both, specs, records, **given)
    check(figure)
    option, values = methods["window and sink"].threshold_steps
    labels = [step.label for step in figure.layout.sliders[0].steps]
    assert [label.split(":")[0] for label in labels] == [f"{option} = {value:g}" for value in values]
    choice = tile_recall.chosen(states, 2, methods["window and sink"].with_threshold(values[0]), 0.7)
    assert f"this head keeps {choice.density()[1]:.0%} of the pairs" in labels[0]
    names = [trace.name for trace in figure.data]
    assert names[2:5] == ["window and sink", "oracle", "truly most"], "a method called oracle is not the curve's own"
    only = {"all tiles": both["all tiles"]}
    records = tile_recall.threshold_records(states, only, SIZE)
    assert sparse_masks.threshold_slider(states, only, specs, records, **given) is None


def test_rules_and_unions_are_drawn_with_what_they_are_worth(states):
    bfla = sparse.named("bfla(block=16, tile=8, flat=4, mass=0.3, local=1, sink=1, stride=5, random=0.1)")
    causes = {i: tile_recall.bfla_rules(states, i, bfla) for i in states.layers}
    check(figure := sparse_masks.kept_by_rule(states, causes, bfla, layer=2, head=3, about="About"))
    added = tile_recall.means(tile_recall.rule_records(causes), "rule", ("density", "attention"))
    bars = {trace.name: dict(zip(trace.y, trace.x, strict=True)) for trace in figure.data if trace.type == "bar"}
    assert bars["attention"]["mass"] == added["mass"]["attention"]
    assert figure.data[1].visible, "the KV head of query head 3"

    compact = Compact(sparse.named(f"random(block={SIZE}, share=0.2)"), heads=0)
    rows = tile_recall.last_chunk(LENGTH, 64)
    unions = {i: tile_states.union(states, i, compact, rows) for i in states.layers}
    check(figure := sparse_masks.union_of_chunk(unions, compact, rows, layer=2, head=3, about="About"))
    assert f"rows {rows.start:,} to {rows.stop - 1:,}" in figure.layout.annotations[-1].text


def test_the_last_whole_chunk_of_a_prompt():
    assert tile_recall.last_chunk(203, 64) == slice(128, 192) and tile_recall.last_chunk(192, 64) == slice(128, 192)
    assert tile_recall.last_chunk(50, 64) == slice(0, 50)


def test_a_long_prompt_is_drawn_framed_and_tabulated():
    long = synthetic_states(1024)
    specs = {"window and sink": "window(block=32, local=2)", "strided": "strided(block=32)"}
    found = {name: tile_recall.framed(long, sparse.named(spec), 256) for name, spec in specs.items()}
    check(figure := tile_overview.long_overview(found, specs, 1024, cells=20, states="Made up."))
    assert figure.layout.updatemenus[0].buttons[0].label == "head 1: share of tiles kept"
    assert figure.layout.shapes[0].y0 == figure.layout.shapes[0].x0 == 24 * 32
    check(figure := tile_overview.frame_maps(found, share=0.8, device="a CPU"))
    assert "256 rows" in figure.layout.annotations[-1].text
    check(figure := tile_overview.choosing_table(found, 1024, "a CPU"))
    assert list(figure.data[0].cells["values"][2]) == [f"{one.record(0)['density']:.1%}" for one in found.values()]


# --- quality against density and cost
def test_costs_count_what_is_read_and_the_choice():
    model = crossover.CrossoverModel.of("llama", LlamaConfig(**LLAMA_3_8B))
    setting = {"sparse": "window", "prompt_tokens": 4096.0, "chunk": 1024.0, "density": 0.25, "union": 0.5}
    compact = {**setting, "sparse": "compact(over=window)"}
    alone, joined = crossover.costs(model, [setting, compact])
    assert alone == pytest.approx(0.25) and joined == pytest.approx(0.5, abs=0.01), "a union is what is read"
    whole = {**setting, "sparse": "dense", "chunk": float("nan"), "density": 1.0}
    assert crossover.costs(model, [whole]) == [pytest.approx(1)]


def test_a_method_saves_what_it_need_not_keep_less_its_choice():
    times = {64: (1.0, 0.9), 128: (4.0, 1.0), 256: (16.0, 20.0)}
    records = []
    for length, (dense, choose) in times.items():
        records.append({"name": "", "length": length, "seconds": dense, "forced": 1.0})
        records.append({"name": "bfla", "length": length, "seconds": choose, "forced": 0.5})
        records.append({"name": "window", "length": length, "seconds": dense, "forced": 0.5})
    saved = crossover.with_saved(iter(records))
    assert [r["saved"] for r in saved if r["name"] == "bfla"] == [1.0 * 0.5 - 0.9, 4.0 * 0.5 - 1.0, 16.0 * 0.5 - 20.0]
    assert not any(r["saved"] for r in saved if not r["name"])


def test_crossings_of_two_models_leave_out_what_is_never_reached():
    llama = crossover.CrossoverModel.of("llama", LlamaConfig(**LLAMA_3_8B))
    cases = {"window": None, "dense": None}
    records = crossover.crossings({"own": llama, "large": llama}, cases, chosen=0.1, gain=0.05, length=8192)
    assert [r["spec"] for r in records] == ["window", "dense"] and records[0]["own"] == records[0]["large"]
    floor = crossover.Floor.of(sparse.named("window"))
    assert records[0]["own"] == crossover.crossover(llama, sparse.named("window"), floor, 0.1, 0.05)
    assert records[1]["own"] is None and records[1]["forced"] == 1
    names = {"own": "mine", "large": "large"}
    length = records[0]["own"]
    assert crossover.lengths_of(records, names) == {"window": {"mine": length, "large": length}, "dense": {}}


def test_thresholds_are_searched_and_answered_on_own_prompts():
    loaded = models.load("lab-full")
    samples = datasets.load("lab", 2, 0, 3)
    prompts = loaded.layout.prompts(samples, loaded.tokenizer)
    specs = ["window(block=64, local=1, sink=0)", "oracle"]
    records = thresholds.answered(loaded, samples, prompts, specs, keep=0.9, chunk=128)
    assert {r["method"] for r in records} == {*specs, "dense"} and records[-1]["method"] == "dense"
    assert records[-1]["agree"] == 1 and records[-1]["kl"] == pytest.approx(0, abs=1e-6)
    for r in records:
        assert r["right"] is None or 0 <= r["right"] <= 2
