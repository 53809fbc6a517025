"""Records, figures and sentences of the notebooks on sparse attention, on small states and made-up tables."""

from dataclasses import replace
from statistics import fmean

import pandas as pd
import pytest
import torch
from transformers import LlamaConfig

from workbench import data as datasets
from workbench import models
from workbench.core.errors import BadInput
from workbench.experiments import results
from workbench.methods import sparse
from workbench.methods.sparse.compact import Compact
from workbench.metrics import crossover, thresholds, tile_recall, tile_records, tile_union
from workbench.metrics.published_numbers import LLAMA_3_8B
from workbench.metrics.thresholds import cheapest
from workbench.metrics.tile_states import States, synthetic_states
from workbench.plots import long_masks, sparse_masks, sparse_quality, sparse_tables
from workbench.plots.theme import TEMPLATE

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
    return tile_records.by_layer(states, methods, 0.7)


@pytest.fixture(scope="module")
def best(states):
    return {i: tile_recall.needed(states, i, SIZE, 0.7) for i in states.layers}


def test_shares_of_every_method_layer_and_head(choices):
    found = tile_records.shares(choices)
    assert list(found) == ["density", "attention", "missed"] and list(found["density"]) == list(SPECS)
    for name, layers in choices.items():
        for at, choice in enumerate(layers.values()):
            assert torch.equal(found["density"][name][at], choice.density())
            assert torch.equal(found["attention"][name][at], choice.held())
            assert torch.equal(found["missed"][name][at], choice.held(choice.missed))
    records = tile_records.head_records(found, [0, 2])
    assert len(records) == 2 * 2 * 4 and records[5] | {"method": "", "density": 0, "attention": 0, "missed": 0} == {
        "method": "",
        "layer": 2,
        "head": 1,
        "density": 0,
        "attention": 0,
        "missed": 0,
    }
    assert records[5]["attention"] == float(found["attention"]["window and sink"][1, 1])
    numbers = tile_records.summary(choices)
    assert list(numbers) == ["density", "attention_kept", "attention_missed", "seconds_to_choose"]
    own = [r["missed"] for r in records if r["method"] == "oracle"]
    assert numbers["attention_missed"]["oracle"] == pytest.approx(fmean(own))
    assert numbers["seconds_to_choose"]["oracle"] == sum(c.seconds for c in choices["oracle"].values())


def test_the_head_where_most_is_missed_is_shown_unless_another_is_asked_for(choices, best):
    missed = tile_records.shares(choices)["missed"]
    needs = torch.stack([choice.density() for choice in best.values()])
    worst = divmod(int(((missed["window and sink"] + missed["oracle"]) / needs).argmax()), 4)
    assert tile_records.most_missed(choices, best) == ([0, 2][worst[0]], worst[1])
    assert tile_records.most_missed(choices, best, layer=2, head=0) == (2, 0)
    with pytest.raises(BadInput, match=r"layer 1, head 0: there are layers \[0, 2\] of 4 heads"):
        tile_records.most_missed(choices, best, layer=1, head=0)
    with pytest.raises(BadInput, match="head 4"):
        tile_records.most_missed(choices, best, head=4)


def test_thresholds_go_from_few_tiles_to_many_and_end_with_the_oracle(states, methods):
    records = tile_records.threshold_records(states, {"window and sink": methods["window and sink"]}, SIZE, 0.7)
    option, values = methods["window and sink"].threshold_steps
    assert [r["value"] for r in records] == [*values, *tile_records.ORACLE] and records[0]["option"] == option
    density = [r["density"] for r in records if r["method"] == "window and sink"]
    assert density == sorted(density)
    turned = methods["window and sink"].with_threshold(values[1])
    by_hand = fmean(tile_recall.chosen(states, i, turned, 0.7).record()["mass"] for i in states.layers)
    assert records[1]["mass"] == pytest.approx(by_hand)
    assert records[-1]["method"] == "oracle" and records[-1]["mass"] >= 0.99


def test_rules_and_unions_become_records_by_layer(states):
    bfla = sparse.named("bfla(block=16, tile=8, flat=4, mass=0.3, local=1, sink=1, stride=5, random=0.1)")
    why = {i: tile_recall.bfla_rules(states, i, bfla) for i in states.layers}
    records = tile_records.rule_records(why)
    assert [r["layer"] for r in records] == [0] * 5 + [2] * 5
    assert (records[6]["density"], records[6]["attention"]) == why[2].added["local"]
    averages = tile_records.means(records, "rule", ("density", "attention"))
    assert averages["sink"]["density"] == fmean(why[i].added["sink"][0] for i in (0, 2))
    unions = {i: tile_union.union(states, i, sparse.named(SPECS["oracle"]), slice(64, 128)) for i in states.layers}
    steps = tile_records.union_records(unions)
    assert [r["step"] for r in steps[4:]] == list(tile_records.UNION_STEPS)
    assert [r["density"] for r in steps[4:]] == unions[2].densities()


def test_a_long_prompt_is_framed_near_its_end():
    long = synthetic_states(1024)
    found = tile_records.framed(long, sparse.named("window(block=32, local=2)"), tokens=256, share=0.8)
    assert [part.rows for part in found.frames] == [slice(24, 32)] * 2, "the frame stays inside"
    record = found.record(1)
    assert record["density"] == pytest.approx(record["tiles"] / (32 * 33 / 2))
    assert record["attention"] == found.frames[1].held() and record["missed"] == found.frames[1].missed()
    wide = tile_records.framed(long, sparse.named("window(block=32, local=2)"), tokens=4096)
    assert wide.frames[0].rows == slice(0, 32), "no more than there is"


# --- figures of a sparse choice


def check(figure) -> None:
    """What every figure keeps: the template, title, notice and caption, and JSON without 16-bit floats."""
    title, notice, caption = (note.text for note in figure.layout.annotations[-3:])
    assert figure.layout.template == TEMPLATE and figure.data
    assert title.startswith("<b>") and notice and caption and '"f2"' not in figure.to_json()


def notice_of(figure) -> str:
    return " ".join(figure.layout.annotations[-2].text.split("<br>"))


def test_methods_are_named_once_and_some_need_nothing_fitted():
    specs = sparse_masks.named_specs(["window", "seer_attention"], 16)
    assert specs["window and sink"] == "window(block=16, local=9)"
    assert list(sparse_masks.unfitted(specs)) == ["window and sink"]
    for methods in ([], ["window", "window"]):
        with pytest.raises(BadInput, match="name at least one, and each only once"):
            sparse_masks.named_specs(methods, 16)
    with pytest.raises(BadInput, match="at least one must need nothing that was fitted"):
        sparse_masks.unfitted({"SeerAttention": "seer_attention"})


def test_the_threshold_slider_steps_through_the_first_method_that_has_one(states, methods):
    both = {"all tiles": sparse.named(f"dense(block={SIZE})"), **methods}
    specs = {"all tiles": f"dense(block={SIZE})", **SPECS}
    records = tile_records.threshold_records(states, both, SIZE, 0.7)
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
    assert "window and sink" in notice_of(figure)
    only = {"all tiles": both["all tiles"]}
    records = tile_records.threshold_records(states, only, SIZE)
    assert sparse_masks.threshold_slider(states, only, specs, records, **given) is None


def test_rules_and_unions_are_drawn_with_what_they_are_worth(states):
    bfla = sparse.named("bfla(block=16, tile=8, flat=4, mass=0.3, local=1, sink=1, stride=5, random=0.1)")
    causes = {i: tile_recall.bfla_rules(states, i, bfla) for i in states.layers}
    check(figure := sparse_masks.kept_by_rule(states, causes, bfla, layer=2, head=3, about="About"))
    added = tile_records.means(tile_records.rule_records(causes), "rule", ("density", "attention"))
    assert f"mass {added['mass']['attention'] / added['mass']['density']:.1f}, local" in notice_of(figure)
    assert "; the hashes stride" in notice_of(figure) and figure.data[1].visible, "the KV head of query head 3"
    plain = replace(bfla, stride=0, random=0.0)
    causes = {i: tile_recall.bfla_rules(states, i, plain) for i in states.layers}
    said = notice_of(sparse_masks.kept_by_rule(states, causes, plain, layer=0, head=0, about="About"))
    assert "hashes" not in said and said.endswith(".")

    compact = Compact(sparse.named(f"random(block={SIZE}, share=0.2)"), heads=0)
    rows = tile_records.last_chunk(LENGTH, 64)
    unions = {i: tile_union.union(states, i, compact, rows) for i in states.layers}
    check(figure := sparse_masks.union_of_chunk(unions, compact, rows, layer=2, head=3, about="About"))
    steps = tile_records.means(tile_records.union_records(unions), "step", ["density"])
    assert f"{steps['chunk']['density']:.0%} with the chunk" in notice_of(figure)
    assert f"rows {rows.start:,} to {rows.stop - 1:,}" in figure.layout.annotations[-1].text


def test_the_last_whole_chunk_of_a_prompt():
    assert tile_records.last_chunk(203, 64) == slice(128, 192) and tile_records.last_chunk(192, 64) == slice(128, 192)
    assert tile_records.last_chunk(50, 64) == slice(0, 50)


def test_a_long_prompt_is_drawn_framed_and_tabulated():
    long = synthetic_states(1024)
    specs = {"window and sink": "window(block=32, local=2)", "strided": "strided(block=32)"}
    found = {name: tile_records.framed(long, sparse.named(spec), 256) for name, spec in specs.items()}
    check(figure := long_masks.long_overview(found, specs, 1024, cells=20, states="Made up."))
    assert figure.layout.updatemenus[0].buttons[0].label == "head 1: share of tiles kept"
    assert figure.layout.shapes[0].y0 == figure.layout.shapes[0].x0 == 24 * 32
    check(figure := long_masks.frame_maps(found, share=0.8, device="a CPU"))
    kept = {name: one.record(1)["attention"] for name, one in found.items()}
    most = max(kept, key=kept.__getitem__)
    assert f"{most} keeps {kept[most]:.0%} of the attention" in notice_of(figure)
    assert "256 rows" in figure.layout.annotations[-1].text
    check(figure := long_masks.choosing_table(found, 1024, "a CPU"))
    assert list(figure.data[0].cells["values"][2]) == [f"{one.record(0)['density']:.1%}" for one in found.values()]


# --- quality against density and cost


@pytest.fixture(scope="module")
def measured():
    shipped, _, _ = models.load("lab-full")
    return sparse_quality.Measured.of(crossover.CrossoverModel.of("lab-full", shipped.config))


def cells_of(figure) -> list[tuple[str, ...]]:
    return list(zip(*figure.data[0].cells["values"], strict=True))


def test_costs_count_what_is_read_and_the_choice(measured):
    model = crossover.CrossoverModel.of("llama", LlamaConfig(**LLAMA_3_8B))
    setting = {"method": "window", "spec": "window", "tokens": 4096.0, "chunk": 1024, "density": 0.25, "union": 0.5}
    compact = {**setting, "method": "compact", "spec": "compact(over=window)"}
    alone, joined = crossover.costs(model, [setting, compact])
    assert alone == pytest.approx(0.25) and joined == pytest.approx(0.5, abs=0.01), "a union is what is read"
    assert measured.dense["cost"] == pytest.approx(1)
    assert (measured.settings.cost >= measured.settings.density - 1e-9).all()


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
    assert crossover.first_paying(saved) == {"bfla": 128, "window": None}
    check(figure := sparse_quality.choice_times(saved, (4, 2, 64), repeats=3, device="a CPU"))
    assert notice_of(figure).startswith("It can pay from 128 tokens (BFLA); at no length here: window and sink.")
    always = [{**r, "saved": 1.0} for r in saved if r["name"] != "window"]
    said = notice_of(sparse_quality.choice_times(always, (4, 2, 64), repeats=3, device="a CPU"))
    assert said.startswith("It can pay from 64 tokens (BFLA) on.")


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
    check(figure := sparse_tables.crossover_table(records, "mine", "large", kept_share=0.1, gain=0.05))
    assert [row[-1] for row in cells_of(figure)] == [f"{length:,}", "never"]
    assert "Operations of mine and large" in figure.layout.annotations[-1].text


def test_settings_are_listed_with_intervals_and_dense_attention_last(measured):
    check(figure := sparse_tables.settings_table(measured))
    rows = cells_of(figure)
    table = measured.settings[measured.settings.group == "table"]
    assert len(rows) == len(table) + 5 + 1 and rows[-1][0].startswith("dense")
    dense = measured.dense
    assert rows[-1][1] == f"{dense['em']:.0%} ({dense['em_low']:.0%}–{dense['em_high']:.0%})"
    assert rows[-1][2:4] == ("100.0%", "0.0%")


def test_methods_are_compared_with_and_without_their_last_rows(measured):
    without = results.read("last-rows")["methods"]
    check(figure := sparse_tables.last_rows_table(measured, without))
    rows = cells_of(figure)
    for row, entry in zip(rows, without.values(), strict=False):
        had = measured.settings.set_index("spec").em[entry["with"]]
        assert row[2].startswith(f"{had:.1%} (") and row[3].startswith(f"{entry['record']['em']:.1%} (")
        assert row[4].startswith(f"{100 * (entry['record']['em'] - had):+.1f} (")
    others = rows[len(without) :]
    assert all(row[2] == "no such rule" and not row[4] for row in others) and len(others) == 5
    assert [row[3] for row in others] == sorted((row[3] for row in others), reverse=True)


def test_the_nearest_setting_of_every_method():
    settings = pd.DataFrame({"method": ["a", "a", "b", "b"], "density": [0.1, 0.5, 0.3, 0.9]})
    assert sparse_quality.nearest(settings, 0.4).index.tolist() == [1, 2]


def test_heads_at_one_density_have_a_panel_a_method(measured):
    heads = results.table("sparse-heads")
    check(figure := sparse_quality.heads_at(measured, heads))
    assert len(figure.data) == 2 * len(sparse_quality.BY_HEAD)
    part = heads[heads.spec == measured.curve.set_index("method").spec["oracle"].iloc[0]]
    assert len(part) == figure.data[0].z.size


def test_thresholds_and_needles_of_the_settings_that_keep_enough(measured):
    chosen = cheapest(measured.curve, "em", 0.95, measured.answers)
    check(figure := sparse_tables.threshold_table(measured, chosen, "em", 0.95))
    rows = cells_of(figure)
    assert len(rows) == len(chosen) == measured.curve.method.nunique() - 1
    for row, r in zip(rows, chosen, strict=True):
        assert (row[1] == "none measured") == (r["spec"] is None) and row[-1] == ("yes" if r["sure"] else "no")
    none = [{**r, "spec": None, "sure": False} for r in chosen]
    said = notice_of(sparse_tables.threshold_table(measured, none, "em", 0.95))
    assert said.startswith(f"0 of {len(chosen)} methods have a threshold that keeps it. “Sure”")
    for which in (chosen, none):
        check(figure := sparse_quality.needles_by_task(measured, which))
        assert "Dense attention (dotted): single" in notice_of(figure)


def test_thresholds_are_searched_and_answered_on_own_prompts(measured):
    loaded = models.load("lab-full")
    samples = datasets.load("lab", 2, 0, 3)
    prompts = loaded.layout.prompts(samples, loaded.tokenizer)
    specs = ["window(block=64, local=1, sink=0)", "oracle"]
    records = thresholds.answered(loaded, samples, prompts, specs, keep=0.9, chunk=128)
    assert {r["method"] for r in records} == {*specs, "dense"} and records[-1]["method"] == "dense"
    assert records[-1]["agree"] == 1 and records[-1]["kl"] == pytest.approx(0, abs=1e-6)
    for r in records:
        assert r["right"] is None or 0 <= r["right"] <= 2
    unreached = [{**records[0], "value": None, "agree": None, "kl": None, "right": None}, *records[1:]]
    check(figure := sparse_tables.own_table(unreached, prompts, 0.9, "About"))
    rows = cells_of(figure)
    assert rows[0][1] == "not reached" and rows[0][4:] == ("", "", "")
    assert rows[-1][:3] == ("all tiles", "", "100%") and rows[-1][-1] == f"{records[-1]['right']:.0f}"
