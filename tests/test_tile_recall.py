"""A sparse choice beside the attention that tiles truly get, on small states, and the tables and figures of it."""

from functools import partial
from statistics import fmean

import pandas as pd
import pytest
import torch
from transformers import LlamaConfig

from tests.random_models import model_of, prompt_of
from tests.refusals import refused
from workbench import data as datasets
from workbench import models
from workbench.core.errors import BadInput
from workbench.core.plan import Site
from workbench.core.tiling import tiles
from workbench.methods import sparse
from workbench.metrics.published_numbers import LLAMA_3_8B
from workbench.metrics.tiles import crossover, sparsity, thresholds, tile_recall, tile_states
from workbench.metrics.tiles.key_rankings import Rankings, rankings
from workbench.metrics.tiles.tile_states import States, dense_states, synthetic_states
from workbench.plots.marks.theme import TEMPLATE
from workbench.plots.tiles import sparse_masks, tile_overview
from workbench.plots.tiles.tile_recall import Span, span_of

LENGTH, SIZE = 203, 16


@pytest.fixture(scope="module")
def states() -> States:
    torch.manual_seed(0)
    keys = {i: torch.randn(2, LENGTH, 16) for i in (0, 2)}
    return States({i: 2 * torch.randn(4, LENGTH, 16) for i in keys}, keys)


def test_states_of_a_prompt_are_those_that_a_method_is_asked_with():
    model, prompt = model_of("llama"), prompt_of(30, 20, 9)
    found = dense_states(model, prompt.tokens)
    assert found.layers == [0, 1, 2] and (found.heads, found.kv_heads, len(found)) == (4, 2, 59)
    method = sparse.from_spec("oracle(block=8, mass=0.6)")
    head = sparsity.measure(model, [prompt], method).heads
    ours = torch.stack([tile_recall.select_by(found, i, method).mass_kept() for i in found.layers]).flatten()
    torch.testing.assert_close(ours, torch.tensor([h.mass for h in head]).double(), atol=1e-5, rtol=0)
    density = torch.stack([tile_recall.select_by(found, i, method).density() for i in found.layers]).flatten()
    torch.testing.assert_close(density, torch.tensor([h.density for h in head]).double(), atol=1e-6, rtol=0)


def test_layers_with_a_window_are_left_out():
    model = model_of("mistral", sliding_window=16)
    refused("every layer has a sliding window", dense_states, model, prompt_of(30, 20).tokens)


def test_needed_kept_and_missed_add_up(states):
    found = tile_recall.select_by(states, 2, sparse.from_spec("window(block=16, local=1)"), 0.7)
    assert torch.equal(found.needed, tile_recall.select_by_oracle(states, 2, 16, 0.7).kept)
    assert (tile_recall.select_by_oracle(states, 2, 16, 0.7).mass_kept() >= 0.7).all() and found.missed.any()
    assert not (found.missed & found.kept).any() and not (found.kept & ~found.grid.causal).any()
    whole = found.mass_kept() + found.mass_kept(~found.kept)
    torch.testing.assert_close(whole, torch.ones(4).double(), atol=1e-5, rtol=0)
    dense = tile_recall.select_by(states, 2, sparse.from_spec("dense(block=16)"))
    assert dense.density().eq(1).all() and not dense.missed.any() and dense.record()["missed_mass"] == 0


def test_chunk_by_chunk_is_what_each_chunk_chooses(states):
    method = sparse.from_spec("quoka(block=8, keep=0.2)")
    assert tile_recall.select_by(states, 0, method).density().eq(1).all(), "of a whole prompt nothing is past"
    found = tile_recall.choice(states, 0, method, 64)
    rows = torch.arange(64, 128)
    alone = method(states.queries[0][:, rows], states.keys[0][:, :128], rows, Site(0, LENGTH)).paged()
    assert torch.equal(found.kept[:, 8:16, :16], alone.kept)
    assert not found.kept[:, 8:16, 16:].any() and not found.kept[:, 8:16, :8].all()
    refused("chunk 60 is no multiple of 8", tile_recall.select_by, states, 0, method, chunk=60)


def test_every_step_of_the_union_covers_the_one_before(states):
    found = tile_states.union(
        states, 0, sparse.from_spec("random(block=8, share=0.1, sink=0, local=0)"), slice(128, 192)
    )
    assert (found.heads >= found.kept.any(1)).all() and found.group == 2 and len(found.groups) == 2
    assert torch.equal(found.groups, found.heads.unflatten(0, (2, 2)).any(1))
    assert torch.equal(found.pages, found.groups | found.own) and found.own.nonzero()[:, 0].tolist() == [*range(16, 24)]
    lists = [found.indices[a:b].tolist() for a, b in zip(found.indptr, found.indptr[1:], strict=False)]
    assert lists == [row.nonzero()[:, 0].tolist() for row in found.pages]
    shares = found.densities()
    assert shares == sorted(shares) and shares[0] < shares[-1] < 1


def test_the_union_is_that_of_compact_attention(states):
    spec, rows = "random(block=8, share=0.1, sink=0, local=0)", torch.arange(128, 192)
    compact = sparse.from_spec(f"compact(over={spec}, heads=1)")
    found = tile_states.union(states, 2, compact, slice(128, 192))
    tiles = compact(states.queries[2][:, rows], states.keys[2][:, :192], rows, Site(2, LENGTH))
    assert found.group == 1 and torch.equal(found.pages, tiles.kept[:, -1])


def test_a_window_of_rows_is_a_part_of_the_whole(states):
    method = sparse.from_spec("strided(block=16, stride=3, local=0)")
    whole, tiles = tile_recall.select_by(states, 0, method, 0.6), tile_recall.choice(states, 0, method)
    part = tile_recall.window(states, 0, 3, tiles, slice(4, 9), 0.6)
    torch.testing.assert_close(part.mass, whole.mass[3, 4:9])
    assert torch.equal(part.kept, whole.kept[3, 4:9]) and torch.equal(part.needed, whole.needed[3, 4:9])
    inside = part.over_keys(slice(2, 6))
    assert inside.mass.shape == (5, 4) and torch.equal(inside.causal, part.causal[:, 2:6])
    assert 0 < inside.mass_kept() < part.mass_kept() < 1 and part.mass_missed() > 0


def test_the_truth_is_worked_out_once_and_only_for_the_rows_asked_for(states, monkeypatch):
    asked = []
    once = partial(lambda mass, q, k, g: asked.append(g.shape) or mass(q, k, g), tiles.mass)
    monkeypatch.setattr("workbench.metrics.tiles.tile_states.mass", once)
    again = States(states.queries, states.keys)
    for spec in ("window(block=16)", "dense(block=16)"):
        tile_recall.window(again, 0, 1, tile_recall.choice(again, 0, sparse.from_spec(spec)), slice(10, 12))
        tile_recall.select_by(again, 2, sparse.from_spec(spec))
    assert asked == [(2, 13), (13, 13)]


def test_rules_of_bfla_share_out_what_it_keeps(states):
    method = sparse.from_spec("bfla(block=16, tile=8, flat=4, mass=0.5, local=1, sink=1, stride=5, random=0.05)")
    found, whole = tile_recall.bfla_rules(states, 0, method), tile_recall.select_by(states, 0, method)
    assert list(found.kept) == list(found.added) == ["mass", "local", "sink", "stride", "random"]
    together = torch.stack(list(found.kept.values())).any(0).repeat_interleave(2, 0)
    assert torch.equal(together, whole.kept)
    assert sum(d for d, _ in found.added.values()) == pytest.approx(float(whole.density().mean()))
    assert sum(m for _, m in found.added.values()) == pytest.approx(float(whole.mass_kept().mean()))


def test_made_up_states_are_sparse_and_repeatable():
    one, two = synthetic_states(2048, 3), synthetic_states(2048, 3)
    assert torch.equal(one.queries[0], two.queries[0]) and not torch.equal(
        one.keys[0], synthetic_states(2048, 4).keys[0]
    )
    needed = tile_recall.select_by_oracle(one, 0, 32, 0.8)
    assert (needed.density() < 0.6).all()
    assert one.mass(0, 32)[0, 8:, 0].mean() > 0.2, "a sink"


# --- Keys by mean and by maximum: what the mean misses, and the figure that says so
def test_a_key_that_one_row_needs_is_missed_by_the_mean():
    one = Rankings(0, 0, mean=torch.tensor([0.3, 0.2, 0.1, 0.05]), peak=torch.tensor([0.4, 0.3, 0.2, 0.9]))
    by_mean, by_peak = one.largest(0.5)
    assert by_mean.tolist() == [True, True, False, False] and by_peak.tolist() == [True, False, False, True]
    assert one.missed_share(0.5) == 0.5 and one.missed_share(1.0) == 0


def test_attention_is_that_of_a_causal_softmax_over_all_keys():
    draw = torch.Generator().manual_seed(0)
    queries, keys = torch.randn(4, 12, 8, generator=draw), torch.randn(2, 12, 8, generator=draw)
    (*_, last) = rankings(States({3: queries}, {3: keys}), window=4)
    logits = queries[3] @ keys[1].mT * 8**-0.5
    mass = logits.masked_fill(torch.ones(12, 12).triu(1).bool(), -torch.inf).softmax(-1)[-4:, :8]
    assert (last.layer, last.head) == (3, 3)
    assert torch.allclose(last.mean, mass.mean(0)) and torch.allclose(last.peak, mass.amax(0))


@pytest.mark.parametrize("window", [0, 12])
def test_a_window_without_keys_before_it_is_refused(window):
    states = States({0: torch.zeros(1, 12, 2)}, {0: torch.zeros(1, 12, 2)})
    refused(f"window is {window}: between 1 and 11 rows", rankings, states, window)


# --- Records, figures and sentences of the notebooks on sparse attention, on small states and made-up tables
SPECS = {"window and sink": f"window(block={SIZE}, local=2)", "oracle": f"oracle(block={SIZE}, mass=0.5)"}


@pytest.fixture(scope="module")
def methods() -> dict:
    return {name: sparse.from_spec(spec) for name, spec in SPECS.items()}


@pytest.fixture(scope="module")
def choices(states, methods):
    return tile_recall.by_layer(states, methods, 0.7)


@pytest.fixture(scope="module")
def best(states):
    return {i: tile_recall.select_by_oracle(states, i, SIZE, 0.7) for i in states.layers}


def test_shares_of_every_method_layer_and_head(choices):
    found = tile_recall.shares(choices)
    assert list(found) == ["density", "attention", "missed"] and list(found["density"]) == list(SPECS)
    for name, layers in choices.items():
        for at, choice in enumerate(layers.values()):
            assert torch.equal(found["density"][name][at], choice.density())
            assert torch.equal(found["attention"][name][at], choice.mass_kept())
            assert torch.equal(found["missed"][name][at], choice.mass_kept(choice.missed))
    records = tile_recall.head_records(found, [0, 2])
    assert len(records) == 2 * 2 * 4 and (records[5]["layer"], records[5]["head"]) == (2, 1)
    assert records[5].keys() == {"method", "layer", "head", "density", "attention", "missed"}
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
    by_hand = fmean(tile_recall.select_by(states, i, turned, 0.7).record()["mass"] for i in states.layers)
    assert records[1]["mass"] == pytest.approx(by_hand)
    assert records[-1]["method"] == "oracle" and records[-1]["mass"] >= 0.99


def test_rules_and_unions_become_records_by_layer(states):
    bfla = sparse.from_spec("bfla(block=16, tile=8, flat=4, mass=0.3, local=1, sink=1, stride=5, random=0.1)")
    why = {i: tile_recall.bfla_rules(states, i, bfla) for i in states.layers}
    records = tile_recall.rule_records(why)
    assert [r["layer"] for r in records] == [0] * 5 + [2] * 5
    assert (records[6]["density"], records[6]["attention"]) == why[2].added["local"]
    unions = {i: tile_states.union(states, i, sparse.from_spec(SPECS["oracle"]), slice(64, 128)) for i in states.layers}
    steps = tile_recall.union_records(unions)
    assert [r["step"] for r in steps[4:]] == list(tile_recall.UNION_STEPS)
    assert [r["density"] for r in steps[4:]] == unions[2].densities()


def test_a_long_prompt_is_framed_near_its_end():
    long = synthetic_states(1024)
    found = tile_recall.measure_window(long, sparse.from_spec("window(block=32, local=2)"), tokens=256, share=0.8)
    assert [part.rows for part in found.frames] == [slice(24, 32)] * 2, "the frame stays inside"
    record = found.record(1)
    assert record["density"] == pytest.approx(record["tiles"] / (32 * 33 / 2))
    assert record["attention"] == found.frames[1].mass_kept() and record["missed"] == found.frames[1].mass_missed()
    wide = tile_recall.measure_window(long, sparse.from_spec("window(block=32, local=2)"), tokens=4096)
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
    both = {"all tiles": sparse.from_spec(f"dense(block={SIZE})"), **methods}
    specs = {"all tiles": f"dense(block={SIZE})", **SPECS}
    records = tile_recall.threshold_records(states, both, SIZE, 0.7)
    given = {"share": 0.7, "layer": 2, "head": 1, "about": "About"}
    figure = sparse_masks.threshold_slider(states, both, specs, records, **given)
    check(figure)
    option, values = methods["window and sink"].threshold_steps
    labels = [step.label for step in figure.layout.sliders[0].steps]
    assert [label.split(":")[0] for label in labels] == [f"{option} = {value:g}" for value in values]
    choice = tile_recall.select_by(states, 2, methods["window and sink"].with_threshold(values[0]), 0.7)
    assert f"this head keeps {choice.density()[1]:.0%} of the pairs" in labels[0]
    names = [trace.name for trace in figure.data]
    assert names[2:5] == ["window and sink", "oracle", "ideal selection"], "the method called oracle has its own curve"
    only = {"all tiles": both["all tiles"]}
    records = tile_recall.threshold_records(states, only, SIZE)
    assert sparse_masks.threshold_slider(states, only, specs, records, **given) is None


def test_rules_and_unions_are_drawn_with_what_they_are_worth(states):
    bfla = sparse.from_spec("bfla(block=16, tile=8, flat=4, mass=0.3, local=1, sink=1, stride=5, random=0.1)")
    causes = {i: tile_recall.bfla_rules(states, i, bfla) for i in states.layers}
    check(figure := sparse_masks.kept_by_rule(states, causes, bfla, layer=2, head=3, about="About"))
    added = pd.DataFrame(tile_recall.rule_records(causes)).groupby("rule").attention.mean()
    bars = {trace.name: dict(zip(trace.y, trace.x, strict=True)) for trace in figure.data if trace.type == "bar"}
    assert bars["attention"]["mass"] == pytest.approx(added["mass"])
    assert figure.data[1].visible, "the KV head of query head 3"


def test_a_long_prompt_is_drawn_and_framed():
    found = tile_recall.measure_window(synthetic_states(1024), sparse.from_spec("window(block=32, local=2)"), 256)
    framed = span_of(found.frames[1].over_keys(found.frames[1].rows))
    pictures = {"window and sink": tile_overview.pictures(found.tiles.kept, 20)}
    check(figure := tile_overview.overview(pictures, Span.whole(range(1024)), detail=framed, caption="Made up."))
    assert figure.layout.updatemenus[0].buttons[0].label == "head 1: share of tiles kept"
    assert figure.layout.shapes[0].y0 == figure.layout.shapes[0].x0 == 24 * 32


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
    floor = crossover.Floor.of(sparse.from_spec("window"))
    assert records[0]["own"] == crossover.crossover(llama, sparse.from_spec("window"), floor, 0.1, 0.05)
    assert records[1]["own"] is None and records[1]["forced"] == 1
    names = {"own": "mine", "large": "large"}
    length = records[0]["own"]
    assert crossover.lengths_of(records, names) == {"window": {"mine": length, "large": length}, "dense": {}}


def test_thresholds_are_searched_and_answered_on_own_prompts():
    loaded = models.load("lab-full")
    samples = datasets.load("lab", 2, 0, 3)
    prompts = loaded.layout.prompts(samples, loaded.tokenizer)
    specs = ["window(block=64, local=1, sink=0)", "oracle"]
    records = thresholds.search_and_answer(loaded, samples, prompts, specs, keep=0.9, chunk=128)
    assert {r["method"] for r in records} == {*specs, "dense"} and records[-1]["method"] == "dense"
    assert records[-1]["agree"] == 1 and records[-1]["kl"] == pytest.approx(0, abs=1e-6)
    for r in records:
        assert r["right"] is None or 0 <= r["right"] <= 2
