"""Figures on small numbers: what they draw, what they say, what they weigh."""

from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import figure_views
from tests.random_models import model_of, prompt_of
from workbench import data
from workbench.app.explore.panels import critical
from workbench.app.explore.panels import long as long_prompts
from workbench.app.explore.panels import tiles as explored
from workbench.core import masks as mask_rules
from workbench.core.blocks import Block, Prompt
from workbench.core.errors import BadInput
from workbench.core.masks import block_attention, causal, sink, visible, window
from workbench.engine.assembly import assemble
from workbench.engine.encoding import encode_many
from workbench.methods import select, sparse
from workbench.methods.sparse._small import SETTINGS, for_tile_size
from workbench.metrics.attention_mass import busiest, measure_masked, overlap, reused
from workbench.metrics.kv import position_encoding
from workbench.metrics.kv.position_encoding import SCHEMES, drift, key_rotation, shift_errors
from workbench.metrics.tiles import tile_recall, tile_states
from workbench.metrics.tiles.tile_states import dense_states, synthetic_states
from workbench.plots.attention.attention_mass import attention, block_mass
from workbench.plots.attention.masks import MaskPanel, masks
from workbench.plots.attention.prompt_strip import strip
from workbench.plots.kv.deviation import changed_by_preparation, deviation
from workbench.plots.kv.position_encoding import rotation
from workbench.plots.marks import chart, styles
from workbench.plots.marks import table as tables
from workbench.plots.marks.elements import pick_evenly
from workbench.plots.marks.styles import SELECTORS, SPARSE_METHODS
from workbench.plots.tiles import heads, tile_overview, union
from workbench.plots.tiles.reduce import blocks, cell_starts, shares
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
from workbench.plots.tiles.union import bfla_rules, first_rule
from workbench.plots.tokens.chosen_tokens import Choice, _layout, agreement, coloured
from workbench.plots.tokens.ratio_outcomes import RatioOutcome, ratios

SAID = {"caption": "n = 3, seed 0, CPU", "notice": "Look here."}
SIZES = (3, 5, 4)


def prompt(sizes=SIZES) -> Prompt:
    return Prompt(tuple(Block(tuple(range(i, i + size))) for i, size in enumerate(sizes)))


@pytest.fixture(scope="module")
def model():
    return position_encoding.tiny({"model_type": "llama"})


check = partial(figure_views.check, said=SAID)


# --- masks
def test_shares_of_a_short_mask_are_the_mask():
    p = prompt()
    at = torch.arange(len(p))
    assert ((shares(block_attention(p), len(p)) == 255) == visible(block_attention(p), at, at).numpy()).all()


@given(length=st.integers(2, 60), cells=st.integers(1, 20), size=st.integers(1, 9))
@settings(max_examples=30, deadline=None)
def test_a_reduced_mask_loses_no_visible_pair(length, cells, size):
    """Block mean over the true cells; anything visible stays above zero, as striding would not keep it."""
    seen = visible(window(size), torch.arange(length), torch.arange(length)).numpy()
    reduced, starts = shares(window(size), length, cells), cell_starts(length, cells)
    edges = [*starts, length]
    assert reduced.dtype == np.uint8 and reduced.shape == (len(starts), len(starts))
    for i in range(len(starts)):
        for j in range(len(starts)):
            part = seen[edges[i] : edges[i + 1], edges[j] : edges[j + 1]]
            assert (reduced[i, j] > 0) == part.any()
            assert abs(reduced[i, j] / 255 - part.mean()) <= 1 / 255


def test_masks_colour_by_block_and_say_both_tokens():
    p = prompt()
    panel = MaskPanel("block", shares(block_attention(p), len(p)), p.block_of.numpy() < 2)
    fig = masks([panel, panel], [f"<t{i}>" for i in range(12)], p.block_of.numpy(), **SAID)
    check(fig)
    ground, top = fig.data[:2]
    assert fig.layout.yaxis.range[0] > fig.layout.yaxis.range[1], "origin at the top left"
    assert fig.layout.xaxis2.matches == "x", "panels zoom together"
    assert top.z[11, 0] == 0 and top.z[11, 4] == 1 and top.z[11, 11] == 2, (
        "computed rows: the colour of the column's block"
    )
    assert top.z[4, 3] == 1 + 3, "cached rows: the pale colour"
    assert np.isnan(top.z[4, 0]) and ground.z[4, 0] == 1, "hidden"
    assert np.isnan(top.z[0, 4]) and ground.z[0, 4] == 0, "the future"
    assert "&lt;t4&gt;" in top.x[4] and "block 1" in top.x[4] and "question" in top.x[11]
    assert len(set(top.x)) == 12


def test_a_long_mask_stays_small():
    fig = masks([MaskPanel("w", shares(window(64), 5000, 256))], ["t"] * 256, np.arange(256) // 64, **SAID)
    assert fig.data[1].z.shape == (256, 256)
    assert len(fig.to_json()) < 1_000_000


@pytest.mark.parametrize(
    ("sentence", "rule"),
    [
        ("causal", causal),
        ("block_attention", block_attention(prompt())),
        ("same_block | (block(row) == question)", block_attention(prompt())),
        ("block(row) == block(col) or block(row) == 2", block_attention(prompt())),
        ("window(3) | sink(2)", window(3) | sink(2)),
        ("row - col < 3 or col < 2", window(3) | sink(2)),
        ("(row - col) // 2 == 0", window(2)),
        ("not window(3) & causal", ~window(3) & causal),
        ("0 <= row - col < 4", window(4)),
    ],
)
def test_sentences_say_what_the_rules_say(sentence, rule):
    at = torch.arange(14)  # two positions behind the prompt: they belong to the question
    parsed = mask_rules.parse(sentence, prompt())
    assert (visible(parsed, at, at) == visible(rule, at, at)).all()
    assert str(parsed) == sentence


def test_strip_shows_every_block_and_its_text():
    check(fig := strip(prompt().block_of.numpy(), ["a <b>", "second", "why?"], marked=[1], **SAID))
    assert [bar.x[0] for bar in fig.data] == list(SIZES)
    assert [bar.text for bar in fig.data] == ["0", "1★", "Q"]
    assert "a &lt;b>" in fig.data[0].hovertemplate


# --- attention
def test_attention_mass_of_reuse_is_that_of_the_block_mask(model):
    p = prompt()
    mask, reuse_ = measure_masked(model, p, block_attention(p)), reused(model, p, "re-encoded")
    torch.testing.assert_close(mask.tokens, reuse_.tokens, atol=1e-6, rtol=0)
    torch.testing.assert_close(mask.logits, reuse_.logits, atol=2e-5, rtol=0)
    torch.testing.assert_close(mask.tokens.sum(-1), torch.ones(3, 4))
    assert mask.blocks[:, :, 1, 0].abs().max() == 0, "a passage does not see another"
    assert measure_masked(model, p).blocks[:, :, 1, 0].min() > 0


def test_attention_mass_is_that_of_the_stock_model(model):
    p = prompt()
    ours = measure_masked(model, p).tokens
    model.set_attn_implementation("eager")
    stock = model(p.tokens[None], output_attentions=True).attentions
    for layer, theirs in enumerate(stock):
        torch.testing.assert_close(ours[layer], theirs[0, :, -1].detach(), atol=1e-6, rtol=0)


def test_attention_figures_select_layer_and_head_without_a_kernel(model):
    p = prompt()
    found = {"full": measure_masked(model, p), "block": reused(model, p, "re-encoded")}
    token = {way: mass.tokens.numpy() for way, mass in found.items()}
    block = {way: mass.blocks.numpy() for way, mass in found.items()}
    for fig in (
        attention(token, ["t"] * 12, p.block_of.numpy(), marked=[1], **SAID),
        block_mass(block, **SAID),
    ):
        check(fig)
        assert len(fig.data) == (4 + 1) * 2
        assert [trace.visible for trace in fig.data] == [True] * 2 + [False] * 8
        assert len(fig.frames) == 3 and all(len(frame.data) == len(fig.data) for frame in fig.frames)
        assert [button.label for button in fig.layout.updatemenus[0].buttons][:2] == ["mean over heads", "head 0"]
        assert fig.layout.updatemenus[0].active == 0
        assert sum(fig.layout.updatemenus[0].buttons[3].args[0]["visible"]) == 2
    frames = attention(token, ["t"] * 12, p.block_of.numpy(), **SAID).frames
    np.testing.assert_allclose(frames[1].data[2].y, token["full"][1, 0], rtol=1e-6)


# --- positions
def test_a_turned_key_lands_where_the_model_puts_it(model):
    found = key_rotation(model, Block((5, 6, 7, 8)), token=2, layer=1, head=1, distances=[0, 1, 7, 100])
    fig = rotation(found, start=2, **SAID)
    check(fig)
    assert len(fig.frames) == 4 and fig.layout.sliders[0].active == 2
    for frame in fig.frames:
        for arrow, ring in zip(frame.data[1::3], frame.data[2::3], strict=True):
            assert abs(arrow.x[1] - ring.x[0]) < 1e-4 and abs(arrow.y[1] - ring.y[0]) < 1e-4


@pytest.mark.parametrize(("name", "value"), [("token", 4), ("layer", 3), ("head", 2)])
def test_a_key_that_is_not_there_is_refused(model, name, value):
    with pytest.raises(BadInput, match=name):
        key_rotation(model, Block((5, 6, 7, 8)), **{"token": 0, "layer": 0, "head": 0, name: value}, distances=[1])


def test_distances_beyond_the_context_are_left_out(model):
    assert key_rotation(model, Block((5, 6)), 0, 0, 0, [1, 510, 511]).distances == (1, 510)


def test_rounding_errors_are_the_known_ones():
    """The order of schemes, and its size for d = 128 and theta = 5e5, do not depend on the draw."""
    inv_freq = 5e5 ** -(torch.arange(0, 128, 2) / 128)
    records = shift_errors(inv_freq, [4096], keys=256)
    error = {r["scheme"]: r["error"] for r in records}
    assert set(error) == set(SCHEMES) == set(styles.SCHEMES)
    assert error["fp32 cache, fp32 shift"] < 1e-6
    assert error["stored un-rotated, rotated once"] == pytest.approx(1.65e-3, rel=0.1)
    assert error["computed in place in bf16"] == pytest.approx(2.6e-3, rel=0.1)
    assert error["bf16 cache, fp32 shift"] == pytest.approx(2.9e-3, rel=0.1)
    assert error["bf16 cache, bf16 shift"] == pytest.approx(3.5e-3, rel=0.1)
    assert error["20 chained fp32 shifts"] < error["20 chained bf16 shifts"] < 0.05
    assert error["naive: not moved"] > 0.5


def test_every_family_is_exact_and_naive_positions_are_not():
    records = position_encoding.exactness(blocks=4)
    assert {"llama", "llama3", "yarn", "qwen2", "qwen3", "mistral", "phi3", "olmo2", "gemma3", "glm4"} <= {
        r["family"] for r in records
    }
    for r in records:
        assert max(r["keys"], r["values"], r["logits"]) < position_encoding.TOLERANCE < r["naive"], r["family"]


def test_drift_is_zero_where_nothing_is_reused_from_elsewhere(model):
    """With one context block at position 0, reuse is full attention."""
    layers, first = drift(model, [prompt((5, 3)), prompt((6, 2))])
    assert max(max(r["error"]) for r in layers) < 1e-5
    assert all(r["agree"] == 1 and max(r["kl"]) < 1e-6 for r in first)
    layers, _ = drift(model, [prompt()])
    assert {r["mode"] for r in layers} == {"block", "naive"} and len(layers) == 2 * 3


def test_table_keeps_texts_left_and_groups_apart():
    fig = tables.table(["a", "b"], [["group", ""], ["x", "1"]], groups=[0], title="T", **SAID)
    check(fig)
    assert fig.data[0].cells.align == ("left", "right")
    assert fig.data[0].cells.fill.color[0][0] != fig.data[0].cells.fill.color[0][1]


def test_table_cuts_texts_that_are_too_long_and_never_a_number():
    fig = tables.table(["a", "b"], [["x" * 300, "1" * 300]], title="T", **SAID)
    text, number = (column[0] for column in fig.data[0].cells.values)
    assert text.endswith("…") and text.count("<br>") == tables.MOST_LINES - 1 and number == "1" * 300


def test_words_that_a_table_broke_are_whole_again_on_a_page():
    rows = [["relevance first", "reordered prefix caching"], ["independent" * 4, "1"]]
    trace = tables.table(["shuffled order", "unbounded"], rows, widths=[1, 9], words=2, title="T", **SAID).data[0]
    narrow = [tables.broken(text, 40) for row in rows for text in row]
    assert any(line.endswith(tables.WITHIN) for lines in narrow for line in lines)
    assert [tables.original_text("<br>".join(lines)) for lines in narrow] == [text for row in rows for text in row]
    assert all(tables.drawn_width(line) <= 40 for lines in narrow for line in lines)
    assert list(map(tables.original_text, trace.header["values"])) == ["shuffled order", "unbounded"]


def test_marks_at_one_share_have_an_axis_near_it():
    rows = chart.measured_rows([{"name": name, "value": 0.0, "low": 0.0, "high": 0.0} for name in "ab"])
    low, high = chart.dot_plot(rows, y="name", percent=True, title="T").layout.xaxis.range
    assert -0.1 < low < 0 < high < 0.1


def test_table_makes_room_for_a_head_of_two_lines():
    short, long = (
        tables.table(["a", *[head] * 9], [["x"] * 10], title="T", **SAID) for head in ("b", "exact match of all")
    )
    more = long.data[0].header.height - short.data[0].header.height
    assert more > 0 and long.layout.height == short.layout.height + more


def test_the_head_that_looks_most_at_a_place_is_found_and_shown_first():
    tokens = torch.zeros(3, 4, 6)
    tokens[1, 2, 4] = 0.9
    wanted = torch.arange(6) == 4
    assert busiest(tokens, wanted) == (1, 2)
    assert overlap(tokens, tokens / 3)[1, 2] == pytest.approx(0.3)
    fig = attention({"full": tokens.numpy()}, ["t"] * 6, np.arange(6) // 2, layer=1, head=2, **SAID)
    assert [trace.visible for trace in fig.data] == [False, False, False, True, False]
    assert fig.data[3].y[4] == pytest.approx(0.9) and fig.layout.updatemenus[0].active == 3
    assert fig.layout.sliders[0].active == 1


# --- Figures and explorers of sparse masks, on small states
MODEL = model_of("llama")
STATES = dense_states(MODEL, prompt_of(60, 70, 30).tokens)  # 160 tokens
SPAN = Span(range(160), range(160))
WINDOW = sparse.from_spec("window(block=8, local=2)")


def test_every_method_has_a_look_and_small_settings():
    assert set(sparse.names()) == set(SPARSE_METHODS) == set(SETTINGS)
    looks = [(SPARSE_METHODS[name].colour, SPARSE_METHODS[name].symbol) for name in sparse.names()]
    assert len(set(looks)) == len(looks), "colour and symbol"
    assert SPARSE_METHODS.name_of("compact(over=bfla(mass=0.5))") == "CompactAttention over BFLA"
    for name in sparse.names():
        assert sparse.from_spec(for_tile_size(name, 16)).size == (64 if name == "seer_attention" else 16)
    assert for_tile_size("bfla(mass=0.5)") == "bfla(mass=0.5)"


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
        z = tile_overview.reduce_tiles(kept, cells, how)
        assert np.array_equal(z >= 2, blocks(np.tril(kept), cells))
        assert np.array_equal(z > 0, blocks(np.tri(count, dtype=bool), cells))
    assert (tile_overview.reduce_tiles(kept | True, cells, "mean") != 254).all(), (
        "whole cells are 255 on the diagonal too"
    )


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
    found = [tile_recall.select_by(STATES, i, WINDOW) for i in STATES.layers]
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
    assert pick_evenly(range(8), 3) == list(range(8))
    assert len(pick_evenly(range(80), 41)) == 8 and {0, 41, 79} <= set(pick_evenly(range(80), 41))


def test_a_slider_moves_the_threshold():
    oracle = sparse.from_spec("oracle(block=8)")
    steps, points = [], []
    for value in (0.3, 0.6, 0.9):
        one = tile_recall.select_by(STATES, 1, oracle.with_threshold(value))
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
    method = sparse.from_spec("bfla(block=16, tile=8, flat=4, mass=0.3, local=1, sink=1, stride=5, random=0.1)")
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
    method = sparse.from_spec("random(block=8, share=0.2, sink=1, local=0)")
    found = [tile_states.union(STATES, i, method, slice(96, 128)) for i in STATES.layers]
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
    found = tile_states.union(STATES, 0, sparse.from_spec(spec), slice(0, 160), heads=1)
    assert found.group == 1 and len(found.groups) == 4


def test_an_overview_beside_its_detail():
    chosen = tile_recall.choice(STATES, 0, WINDOW)
    part = tile_recall.window(STATES, 0, 1, chosen, slice(10, 14)).over_keys(slice(8, 14))
    where = span_of(part)
    assert (where.rows, where.keys) == (range(80, 112), range(64, 112))
    z = tile_overview.reduce_tiles(chosen.kept[1].numpy(), 10, "mean")
    fig = tile_overview.overview_figure(z, SPAN, in_window(part, 20), where, names=["all", "part"], title="T", **SAID)
    check(fig)
    assert fig.data[0].z.shape == (10, 10) and fig.data[1].z.shape == (4, 6) and fig.layout.shapes[0].y0 == 80
    panels = {"w": {"mean": z, "max": tile_overview.reduce_tiles(chosen.kept[1].numpy(), 10, "max")}}
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
    assert explored.thresholds_of("dense") == ([("–", "")], "")
    labels, own = explored.thresholds_of("compact(over=flash_prefill(alpha=0.06))")
    assert (
        own == 0.06
        and ("alpha = 0.06", 0.06) in labels
        and [v for _, v in labels] == sorted((v for _, v in labels), reverse=True)
    )
    assert (
        explored.thresholds_of("xattention(threshold=taus.json)")[1]
        in sparse.from_spec("xattention").threshold_steps[1]
    )


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


# --- Figures and explorers of deviation and selection, on small numbers
PROMPT = prompt_of(3, 5, 4, 2)
TOKENS = [f" t{i}<" for i in range(14)]


def test_every_selector_has_a_look_of_its_own():
    assert set(select.names()) == set(SELECTORS)
    looks = [(SELECTORS.colour_of(name), SELECTORS.symbol_of(name)) for name in select.names()]
    assert len(set(looks)) == len(looks), "colour and symbol"
    assert SELECTORS.name_of("query_guided(layers=all)") == "question-guided (FusionRAG): layers=all"
    assert SELECTORS.colour_of("query_guided(layers=all)") == SELECTORS.colour_of("query_guided")


def test_lines_list_every_name_once_and_leave_nan_out():
    rows = [
        {"name": name, "panel": panel, "at": at, "mean": at / 4 if at else float("nan"), "low": 0.0, "high": 1.0}
        for name in ("a", "b")
        for panel in ("one", "two")
        for at in range(4)
    ]
    panels = {"one": {"title": "one", "percent": True}, "two": {"title": "two", "y_log": True}}
    fig = chart.lines(
        chart.measured_rows(rows), x="at", by="name", panel="panel", panels=panels, title="T", mark=1, **SAID
    )
    assert [trace.name for trace in fig.data if trace.showlegend] == ["a", "b"]
    lines = [trace for trace in fig.data if trace.mode == "lines+markers"]
    assert len(lines) == 4 and all(trace.x == (1, 2, 3) for trace in lines)
    assert fig.layout.yaxis2.type == "log"


def test_deviation_is_logarithmic_and_white_where_there_is_none():
    gap = np.array([[0.0, 1.0], [0.0, 100.0], [1e-9, 10.0]] * 4)
    check(fig := deviation({"a": gap, "b": gap / 10}, TOKENS[:12], PROMPT.block_of[:12].numpy(), **SAID))
    first, second = fig.data
    assert np.isnan(first.z[0]).all() and first.z[1][:3].tolist() == [0, 2, 1]
    np.testing.assert_allclose(second.z[1], first.z[1] - 1, atol=1e-6)
    assert "question" not in str(first.customdata)
    check(deviation({"exact": gap * 0}, TOKENS[:12], PROMPT.block_of[:12].numpy(), **SAID))


def test_preparation_changes_the_deviation_by_what_was_measured_and_read():
    def read(**values):
        about = {"measure": "change_by_preparation", "model": "small"}
        return pd.DataFrame([{**about, "data": data, "value": value} for data, value in values.items()])

    said = changed_by_preparation(0.02, read(lab=0.5, nq=-0.7, manuals=-0.65), "lab")
    assert said.startswith("Caching after similar passages raises the mean deviation by 2% on lab. In the results")
    assert said.endswith("(small on nq and manuals, layer 1), it lowers the mean deviation by 65% to 70%.")
    assert changed_by_preparation(-0.1, read(lab=0.5), "lab").endswith("lowers the mean deviation by 10% on lab.")
    assert "changes the mean deviation by -10% to +20%." in changed_by_preparation(0, read(a=-0.1, b=0.2), "lab")


def test_coloured_text_frames_what_is_chosen():
    scores = np.array([-np.inf] * 3 + [0.1, 0.5, 0.2, 0.4, 0.3, 9, 8, 7, 6])
    choices = {"one": Choice(scores, np.array([8, 9])), "two": Choice(scores[::-1].copy(), np.array([0]))}
    check(fig := coloured(choices, TOKENS, PROMPT.block_of.numpy(), title="T", marked=[1], **SAID))
    bars, letters = fig.data
    assert letters.mode == "text" and list(letters.x) == list(bars.base), "letters lie over the boxes of all tokens"
    assert len(letters.text) == 14 and letters.text[0] == " t0&lt;"
    assert [i for i, width in enumerate(bars.marker.line.width) if width] == [8, 9]
    colours = bars.marker.color
    assert colours[8] == "#f0a125" and {colours[0], colours[13]} == {"#ffffff"}, "browsers read colours, not numbers"
    switched = fig.layout.updatemenus[0].buttons[1].args[0]["marker.color"][0]
    assert len(switched) == 14 and all(isinstance(colour, str) for colour in switched)
    assert "never" in bars.customdata[0] and "always" in bars.customdata[13] and "recomputed" in bars.customdata[8]
    assert fig.layout.updatemenus[0].buttons[1].args[0]["marker.line.width"][0][0] > 0
    assert list(fig.layout.yaxis.ticktext) == ["0", "1★", "2", "question"]


def test_long_text_wraps_and_blocks_begin_a_line():
    lines, columns, first = _layout([48] * 5, np.array([0, 0, 0, 1, 1]))
    assert lines == [0, 0, 1, 2, 2] and columns == [0, 48, 0, 0, 48] and first == {0: 0, 1: 2}


def test_agreement_shows_one_measure_at_a_time():
    matrix = np.array([[1, 0.25], [0.25, 1]])
    check(fig := agreement({"a": matrix, "b": matrix}, ["one (x)", "two"], title="T", **SAID))
    assert [trace.visible for trace in fig.data] == [True, False]
    assert np.isnan(fig.data[0].z[0][0]) and fig.data[0].z[0][1] == 0.25
    assert fig.layout.updatemenus[0].buttons[1].args[0]["visible"] == [False, True]


def test_the_slider_moves_the_set_and_the_answer():
    nothing, some = np.array([], dtype=int), np.array([4, 11, 13])
    steps = {
        0.0: {"a": RatioOutcome(nothing, "wrong", False), "b": RatioOutcome(nothing, "wrong", False)},
        0.5: {"a": RatioOutcome(some, "right", True), "b": RatioOutcome(nothing, "who <knows>", None)},
    }
    check(fig := ratios(steps, TOKENS, PROMPT.block_of.numpy(), title="T", active=1, **SAID))
    assert [frame.name for frame in fig.frames] == ["0%", "50%"] and fig.layout.sliders[0].active == 1
    assert np.isnan(fig.frames[0].data[0].z).all()
    assert np.argwhere(~np.isnan(fig.data[0].z)).tolist() == [[0, 4], [0, 11]], "the question is left out"
    given = ratios(steps, TOKENS, PROMPT.block_of.numpy(), title="T", recovered={"a": "50%"}, **SAID)
    assert {"50%", "–", "recovered at"} <= {note.text for note in given.layout.annotations}
    assert fig.data[1].text == ("✓ right", "who &lt;knows>") and "✗" in fig.frames[0].data[1].text[0]


# --- explorers
def test_packed_answers_are_those_of_each_choice_alone(loaded):
    model, tokenizer, layout = loaded
    prompt = layout.prompt(data.load("lab", 1, 0, 3)[0], tokenizer)
    kv = assemble(model, prompt, encode_many(model, prompt.context))
    before = [x.clone() for x in kv.tensors()]
    choices = [torch.arange(0), torch.tensor([20, 30]), torch.arange(prompt.starts[-1])]
    together = critical.answers(loaded, prompt, kv, choices, 4)
    assert together == [critical.answers(loaded, prompt, kv, [rows], 4)[0] for rows in choices]
    assert all(torch.equal(a, b) for a, b in zip(before, kv.tensors(), strict=True))
