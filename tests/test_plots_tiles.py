"""Figures and explorers of sparse masks, on small states."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.random_models import model_of, prompt_of
from tests.test_plots import SAID, check
from workbench.app.explore.panels import long as long_prompts
from workbench.app.explore.panels import tiles as explored
from workbench.methods import sparse
from workbench.methods.sparse._small import SETTINGS, small
from workbench.metrics.tiles import tile_recall, tile_union
from workbench.metrics.tiles.tile_states import dense_states, synthetic_states
from workbench.plots.marks.controls import some
from workbench.plots.marks.styles import SPARSE_METHODS
from workbench.plots.tiles import heads, tile_overview, union
from workbench.plots.tiles.bfla_rules import bfla_rules, first_rule
from workbench.plots.tiles.reduce import blocks
from workbench.plots.tiles.tile_recall import (
    LEVELS,
    DensityCurve,
    Span,
    ThresholdStep,
    by_threshold,
    cells,
    in_window,
    maps,
    of_head,
    span_of,
)

MODEL = model_of("llama")
STATES = dense_states(MODEL, prompt_of(60, 70, 30).tokens)  # 160 tokens
SPAN = Span(range(160), range(160))
WINDOW = sparse.named("window(block=8, local=2)")


def test_every_method_has_a_look_and_small_settings():
    assert set(sparse.names()) == set(SPARSE_METHODS) == set(SETTINGS)
    looks = [(SPARSE_METHODS[name].colour, SPARSE_METHODS[name].symbol) for name in sparse.names()]
    assert len(set(looks)) == len(looks), "colour and symbol"
    assert SPARSE_METHODS.name_of("compact(over=bfla(mass=0.5))") == "CompactAttention over BFLA"
    for name in sparse.names():
        assert sparse.named(small(name, 16)).size == (64 if name == "seer_attention" else 16)
    assert small("bfla(mass=0.5)") == "bfla(mass=0.5)"


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 12), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_reduction_by_block_loses_nothing(i, j, cells, seed):
    x = np.random.default_rng(seed).random((i, j)) < 0.1
    most, total = blocks(x, cells), blocks(x.astype(float), cells, "sum")
    assert most.shape == total.shape == (min(i, cells), min(j, cells))
    assert np.array_equal(most, total > 0) and total.sum() == x.sum()
    mean = blocks(x.astype(float), cells, "mean")
    sizes = blocks(np.ones((i, j)), cells, "sum")
    np.testing.assert_allclose(mean * sizes, total, atol=1e-9)


@given(st.integers(1, 60), st.integers(1, 20), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_an_overview_shows_every_kept_tile(count, cells, seed):
    kept = np.random.default_rng(seed).random((count, count)) < 0.05
    for how in tile_overview.REDUCTIONS:
        z = tile_overview.reduced(kept, cells, how)
        assert np.array_equal(z >= 2, blocks(np.tril(kept), cells))
        assert np.array_equal(z > 0, blocks(np.tri(count, dtype=bool), cells))
    assert (tile_overview.reduced(kept | True, cells, "mean") != 254).all(), "whole cells are 255 on the diagonal too"


def test_a_tile_is_dropped_kept_or_missed_and_darker_with_attention():
    mass = np.array([[1, 0, 0, 0], [0.5, 0.5, 0, 0], [0.7, 0.1, 0.2, 0], [0.02, 0.08, 0.3, 0.6]])
    causal, needed = np.tri(4, dtype=bool), mass > 0.25
    kept = np.eye(4, dtype=bool)
    found = cells(mass, kept, needed, causal)
    status = found.z // LEVELS
    assert status.tolist() == [[2, 0, 0, 0], [3, 2, 0, 0], [3, 1, 2, 0], [1, 1, 3, 2]]
    assert found.z[2, 0] > found.z[1, 0] and found.z[3, 1] > found.z[3, 0]
    assert found.percent[3].tolist() == [2, 8, 30, 60]
    small = cells(mass, kept, needed, causal, most=2)
    assert (small.z // LEVELS).tolist() == [[3, 0], [3, 3]] and small.percent.tolist() == [[100, 0], [45, 55]]


def test_maps_pick_layer_and_head_without_a_kernel():
    found = [tile_recall.chosen(STATES, i, WINDOW) for i in STATES.layers]
    panels = {name: [[of_head(c, h) for h in range(4)] for c in found] for name in ("one", "two")}
    given = {"layers": [0, 1, 2], "heads": [0, 1, 2, 3], "title": "T", "layer": 1, "head": 2}
    check(fig := maps(panels, SPAN, **given, **SAID))
    assert [trace.visible for trace in fig.data[:8]] == [False] * 4 + [True] * 2 + [False] * 2
    assert fig.layout.sliders[0].active == 1 and [frame.name for frame in fig.frames] == ["0", "1", "2"]
    np.testing.assert_array_equal(fig.frames[2].data[5].z, of_head(found[2], 2).z)
    assert fig.data[0].x0 == 4 and fig.data[0].dx == 8
    assert fig.layout.updatemenus[0].buttons[3].args[0]["visible"] == [False] * 6 + [True] * 5
    alone = maps({"one": [[panels["one"][0][0]]]}, SPAN, layers=[0], heads=[0], title="T", **SAID)
    assert not alone.frames and not alone.layout.sliders and not alone.layout.updatemenus


def test_a_figure_carries_few_layers_the_wanted_one_among_them():
    assert some(range(8), 3) == list(range(8))
    assert len(some(range(80), 41)) == 8 and {0, 41, 79} <= set(some(range(80), 41))


def test_a_slider_moves_the_threshold():
    oracle = sparse.named("oracle(block=8)")
    steps, points = [], []
    for value in (0.3, 0.6, 0.9):
        one = tile_recall.chosen(STATES, 1, oracle.with_threshold(value))
        points.append(one.record())
        steps.append(ThresholdStep(of_head(one, 0), f"mass {value}", points[-1]["density"], points[-1]["mass"]))
    x, y = [p["density"] for p in points], [p["mass"] for p in points]
    curve = DensityCurve("oracle", "#000000", "x", x, y, ["a", "b", "c"])
    check(fig := by_threshold(steps, SPAN, [curve], {"map": "M", "curves": "C"}, active=1, **SAID))
    assert fig.data[1].x == (x[1],) and fig.frames[2].data[1].y == (y[2],)
    assert [step.label for step in fig.layout.sliders[0].steps] == ["mass 0.3", "mass 0.6", "mass 0.9"]
    alone = by_threshold(steps[:1], SPAN, [curve], {"map": "M", "curves": "C"}, active=0, **SAID)
    assert [step.label for step in alone.layout.sliders[0].steps] == ["mass 0.3"], "one threshold still has a sentence"


def test_heads_have_one_scale_and_their_numbers():
    share = {"a": np.array([[0.1, 0.2], [0.3, 0.44]]), "b": np.eye(2)}
    check(fig := heads.by_head({"density": share, "kept": share}, [0, 5], title="T", **SAID))
    assert fig.layout.coloraxis.cmin == 0 and fig.layout.coloraxis.cmax == 1 and len(fig.data) == 4
    assert fig.data[0].text.tolist() == [[10, 20], [30, 44]] and fig.data[0].y == ("0", "5")
    assert "a: 26%" in [note.text for note in fig.layout.annotations]


def test_rescues_show_the_first_rule():
    method = sparse.named("bfla(block=16, tile=8, flat=4, mass=0.3, local=1, sink=1, stride=5, random=0.1)")
    found = [tile_recall.bfla_rules(STATES, i, method) for i in STATES.layers]
    picture = first_rule(found[0], 1)
    kept = found[0].kept
    assert np.array_equal(picture == 2, kept["mass"][1].numpy())
    assert np.array_equal(picture == 4, (kept["sink"] & ~kept["mass"] & ~kept["local"])[1].numpy())
    assert np.array_equal(picture > 0, found[0].causal.numpy()) and {5, 6} <= set(picture.ravel().tolist())
    pictures = [[first_rule(one, h) for h in range(2)] for one in found]
    check(fig := bfla_rules(pictures, SPAN, found[0].added, layers=STATES.layers, heads=[0, 1], head=1, **SAID))
    bars = [trace for trace in fig.data if trace.type == "bar"]
    assert bars[0].y == ("mass", "local", "sink", "stride", "random") and len(fig.frames) == 3
    assert len(fig.layout.updatemenus[0].buttons[0].args[0]["visible"]) == len(fig.data)


def test_the_union_is_drawn_step_by_step():
    method = sparse.named("random(block=8, share=0.2, sink=1, local=0)")
    found = [tile_union.union(STATES, i, method, slice(96, 128)) for i in STATES.layers]
    first, second, third, fourth = union.steps(found[1], 1)
    assert first.shape == (2 * 4, 16) and second.shape == (2, 16) and third.shape == fourth.shape == (1, 16)
    assert np.array_equal(second >= 2, found[1].heads[2:].numpy())
    assert np.array_equal(third[0] >= 2, found[1].groups[1].numpy())
    assert np.array_equal(fourth[0] == 4, found[1].own.numpy()) and second[0, 0] == 2, "the sink, asked for by all"
    statuses, numbers = union.page_lists(found[1])
    listed = numbers[1][numbers[1] >= 0]
    assert listed.tolist() == found[1].pages[1].nonzero()[:, 0].tolist()
    assert np.array_equal(statuses[1][: len(listed)], fourth[0][listed]) and not statuses[1][len(listed) :].any()
    check(fig := union.union(found, layers=STATES.layers, layer=1, group=1, **SAID))
    assert [trace.visible for trace in fig.data[:8]] == [False] * 4 + [True] * 4
    assert fig.layout.sliders[0].steps[1].label.startswith("1: ")


@pytest.mark.parametrize("spec", ["random(block=8)", "dense(block=8)"])
def test_a_single_head_can_be_an_execution_group(spec):
    found = tile_union.union(STATES, 0, sparse.named(spec), slice(0, 160), heads=1)
    assert found.group == 1 and len(found.groups) == 4


def test_an_overview_beside_its_detail():
    chosen = tile_recall.choice(STATES, 0, WINDOW)
    part = tile_recall.window(STATES, 0, 1, chosen, slice(10, 14)).at(slice(8, 14))
    where = span_of(part)
    assert (where.rows, where.keys) == (range(80, 112), range(64, 112))
    z = tile_overview.reduced(chosen.kept[1].numpy(), 10, "mean")
    fig = tile_overview.zoomed(z, SPAN, in_window(part, 20), where, names=["all", "part"], title="T", **SAID)
    check(fig)
    assert fig.data[0].z.shape == (10, 10) and fig.data[1].z.shape == (4, 6) and fig.layout.shapes[0].y0 == 80
    panels = {"w": {"mean": z, "max": tile_overview.reduced(chosen.kept[1].numpy(), 10, "max")}}
    check(fig := tile_overview.overview(panels, SPAN, detail=where, **SAID))
    assert len(fig.layout.updatemenus[0].buttons) == 2 and not fig.data[1].visible


# --- explorers


def notice(box) -> str:
    return box.children[-1].layout.annotations[-2].text


def test_the_explorer_of_tiles_follows_its_controls():
    box = explored.tiles_explorer(MODEL, STATES, ["window(block=8, local=2)", "bfla"], chunk=32, layer=1)
    method, threshold, layer, head, below, chunks, chunk = box.children[0].children
    said, _, shown, second = box.children[1:]
    names = [name for name, _ in method.options]
    assert names[:2] == ["window and sink", "BFLA"] and "oracle" in names and "SeerAttention" not in names, "no gate"
    before = shown.data[1].z.copy()
    threshold.value = 8
    assert (shown.data[1].z != before).any()
    method.value = next(spec for name, spec in method.options if name == "QUOKA")
    assert threshold.options[0][0] == "keep = 0.05" and threshold.value == 0.25
    chunks.value = True
    layer.value, head.value = 2, 3
    assert "Head 3 keeps" in shown.layout.annotations[-2].text
    text = second.layout.annotations[-2].text
    chunk.value = 1
    assert "Rows 32 to 63, layer 2" in second.layout.annotations[-2].text != text
    below.value = "rules"
    assert "only BFLA" in said.value
    method.value = next(spec for name, spec in method.options if name == "BFLA")
    assert "chunk 32 is no multiple of 64" in said.value
    chunks.value = False
    assert said.value == "" and any(trace.type == "bar" for trace in second.data)
    assert not second.layout.shapes, "the lines of the union are gone"
    below.value = "union"
    assert len(second.layout.shapes) == 1 and len(second.data) == 2 * 4 + 1 + 3


def test_a_method_without_a_threshold_has_nothing_to_turn():
    assert explored.thresholds_of("dense") == ([("–", None)], None)
    labels, own = explored.thresholds_of("compact(over=flash_prefill(alpha=0.06))")
    assert (
        own == 0.06
        and ("alpha = 0.06", 0.06) in labels
        and [v for _, v in labels] == sorted((v for _, v in labels), reverse=True)
    )
    assert explored.thresholds_of("xattention(threshold=taus.json)")[1] in sparse.named("xattention").threshold_steps[1]


def test_the_explorer_of_a_long_prompt_moves_its_frame():
    states = synthetic_states(1024)
    box = long_prompts.long_explorer(states, ["window(block=16)", "strided(block=16)"], cells=20, side=8)
    method, _, how, head, row, key = box.children[0].children
    shown = box.children[-1]
    assert np.asarray(shown.data[0].z).shape == (20, 20) and np.asarray(shown.data[1].z).shape == (8, 8)
    row.value, key.value = 63, 63
    assert shown.layout.shapes[0].y0 == shown.layout.shapes[0].x0 == 56 * 16, "the frame stays inside"
    text, before = notice(box), np.array(shown.data[0].z)
    method.value, head.value, how.value = "strided(block=16)", 0, "max"
    assert notice(box) != text and (np.array(shown.data[0].z) != before).any()
