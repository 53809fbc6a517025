"""Figures on small numbers: what they draw, what they say, what they weigh."""

import json

import numpy as np
import plotly.graph_objects as go
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.core import mask_rules
from workbench.core.blocks import Block, Prompt
from workbench.core.errors import BadInput
from workbench.core.masks import block_attention, causal, sink, visible, window
from workbench.metrics.attention_mass import busiest, masked, overlap, reused
from workbench.metrics.kv import position_encoding
from workbench.metrics.kv.position_drift import drift
from workbench.metrics.kv.position_encoding import SCHEMES, key_rotation, shift_errors
from workbench.plots.attention.attention_mass import attention, block_mass
from workbench.plots.attention.masks import MaskPanel, masks, request_savings
from workbench.plots.attention.prompt_strip import strip
from workbench.plots.kv.position_encoding import exactness, positions_drift, rotation
from workbench.plots.marks import table as tables
from workbench.plots.marks.lines import SCHEMES as DRAWN_SCHEMES
from workbench.plots.marks.lines import rounding
from workbench.plots.marks.theme import TEMPLATE, WIDTH
from workbench.plots.reports.session_replay import quality
from workbench.plots.tiles.reduce import firsts, shares, visible_pairs

SAID = {"caption": "n = 3, seed 0, CPU", "notice": "Look here."}
SIZES = (3, 5, 4)


def prompt(sizes=SIZES) -> Prompt:
    return Prompt(tuple(Block(tuple(range(i, i + size))) for i, size in enumerate(sizes)))


@pytest.fixture(scope="module")
def model():
    return position_encoding.tiny({"model_type": "llama"})


def check(fig: go.Figure, noticed: bool = True) -> dict:
    """What every figure keeps: the template, a fixed size, its three texts, and JSON without 16-bit floats."""
    assert fig.layout.template == TEMPLATE
    assert fig.layout.width == WIDTH and fig.layout.height > 100
    texts = [note.text for note in fig.layout.annotations]
    assert any(text.startswith("<b>") for text in texts)
    assert SAID["caption"] in texts and (SAID["notice"] in texts) == noticed
    assert fig.data
    text = fig.to_json()
    assert '"f2"' not in text
    return json.loads(text)


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
    reduced, starts = shares(window(size), length, cells), firsts(length, cells)
    edges = [*starts, length]
    assert reduced.dtype == np.uint8 and reduced.shape == (len(starts), len(starts))
    for i in range(len(starts)):
        for j in range(len(starts)):
            part = seen[edges[i] : edges[i + 1], edges[j] : edges[j + 1]]
            assert (reduced[i, j] > 0) == part.any()
            assert abs(reduced[i, j] / 255 - part.mean()) <= 1 / 255


def test_visible_pairs_counts_rows_that_are_computed():
    p = prompt()
    assert visible_pairs(causal, len(p)) == 12 * 13 // 2
    assert visible_pairs(block_attention(p), len(p)) == 6 + 15 + (9 + 10 + 11 + 12)
    assert visible_pairs(block_attention(p), len(p), p.question) == 9 + 10 + 11 + 12


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


@pytest.mark.parametrize(
    "sentence",
    [
        *("", "1", "row", "~row", "True", "'a'", "window(0)", "window(row)", "window(3", "row & col", "row < 9**9**9"),
        "foo",
        "__import__('os').system('x')",
        "row.real",
        "(lambda: 1)()",
        "col // 0 < 1",
        "[row]",
        "(" * 300 + "1" + ")" * 300,
    ],
)
def test_other_sentences_are_refused_and_nothing_runs(sentence):
    with pytest.raises(BadInput, match="mask rule"):
        mask_rules.check(sentence)


def test_savings_shows_what_is_computed_on_request():
    record = {"mask": "Cached blocks", "pairs": 60, "computed": 20, "causal": 100, "rows": 5, "length": 40}
    fig = request_savings([record], "a text")
    assert fig.data[0].x == (0.6,) and fig.data[1].x == (0.2,)


def test_strip_shows_every_block_and_its_text():
    check(fig := strip(prompt().block_of.numpy(), ["a <b>", "second", "why?"], marked=[1], **SAID))
    assert [bar.x[0] for bar in fig.data] == list(SIZES)
    assert [bar.text for bar in fig.data] == ["0", "1★", "Q"]
    assert "a &lt;b>" in fig.data[0].hovertemplate


# --- attention


def test_attention_mass_of_reuse_is_that_of_the_block_mask(model):
    p = prompt()
    mask, reuse_ = masked(model, p, block_attention(p)), reused(model, p, "re-encoded")
    torch.testing.assert_close(mask.tokens, reuse_.tokens, atol=1e-6, rtol=0)
    torch.testing.assert_close(mask.logits, reuse_.logits, atol=2e-5, rtol=0)
    torch.testing.assert_close(mask.tokens.sum(-1), torch.ones(3, 4))
    assert mask.blocks[:, :, 1, 0].abs().max() == 0, "a passage does not see another"
    assert masked(model, p).blocks[:, :, 1, 0].min() > 0


def test_attention_mass_is_that_of_the_stock_model(model):
    p = prompt()
    ours = masked(model, p).tokens
    model.set_attn_implementation("eager")
    stock = model(p.tokens[None], output_attentions=True).attentions
    for layer, theirs in enumerate(stock):
        torch.testing.assert_close(ours[layer], theirs[0, :, -1].detach(), atol=1e-6, rtol=0)


def test_attention_figures_select_layer_and_head_without_a_kernel(model):
    p = prompt()
    found = {"full": masked(model, p), "block": reused(model, p, "re-encoded")}
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
    np.testing.assert_allclose(attention_of(token, p).frames[1].data[2].y, token["full"][1, 0], rtol=1e-6)


def attention_of(token, p) -> go.Figure:
    return attention(token, ["t"] * 12, p.block_of.numpy(), **SAID)


# --- positions


def test_a_turned_key_lands_where_the_model_puts_it(model):
    found = key_rotation(model, Block((5, 6, 7, 8)), token=2, layer=1, head=1, distances=[0, 1, 7, 100])
    fig = rotation(found.cached, found.inv_freq, found.distances, found.in_place, pairs=found.pairs, start=2, **SAID)
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
    assert set(error) == set(SCHEMES) == set(DRAWN_SCHEMES)
    assert error["fp32 cache, fp32 shift"] < 1e-6
    assert error["stored un-rotated, rotated once"] == pytest.approx(1.65e-3, rel=0.1)
    assert error["computed in place in bf16"] == pytest.approx(2.6e-3, rel=0.1)
    assert error["bf16 cache, fp32 shift"] == pytest.approx(2.9e-3, rel=0.1)
    assert error["bf16 cache, bf16 shift"] == pytest.approx(3.5e-3, rel=0.1)
    assert error["20 chained fp32 shifts"] < error["20 chained bf16 shifts"] < 0.05
    assert error["naive: not moved"] > 0.5
    check(fig := rounding(records, SCHEMES, caption=SAID["caption"]), noticed=False)
    assert len(fig.data) == len(SCHEMES)


def test_every_family_is_exact_and_naive_positions_are_not():
    records = position_encoding.exactness(blocks=4)
    assert {"llama", "llama3", "yarn", "qwen2", "qwen3", "mistral", "phi3", "olmo2", "gemma3", "glm4"} <= {
        r["family"] for r in records
    }
    for r in records:
        assert max(r["keys"], r["values"], r["logits"]) < position_encoding.TOLERANCE < r["naive"], r["family"]
    check(exactness(records, position_encoding.TOLERANCE, **SAID))


def test_drift_is_zero_where_nothing_is_reused_from_elsewhere(model):
    """With one context block at position 0, reuse is full attention."""
    layers, first = drift(model, [prompt((5, 3)), prompt((6, 2))])
    assert max(max(r["error"]) for r in layers) < 1e-5
    assert all(r["agree"] == 1 and max(r["kl"]) < 1e-6 for r in first)
    layers, first = drift(model, [prompt()])
    assert "tiny. Left" in positions_drift(layers, first, about="tiny").layout.annotations[-1].text
    assert {r["mode"] for r in layers} == {"block", "naive"} and len(layers) == 2 * 3


# --- reuse


def score(mode, kind, em):
    low, high = max(0, em - 0.1), min(1, em + 0.1)
    return {"mode": mode, "kind": kind, "n": 40, "em": em, "em_low": low, "em_high": high} | {
        "f1": em,
        "f1_low": low,
        "f1_high": high,
    }


def test_quality_orders_kinds_and_carries_intervals():
    records = [score(m, k, 0.5) for m in ("full", "block") for k in ("two-hop", "odd", "all", "single-hop")]
    check(fig := quality(records, **SAID))
    assert [t.split("<br>")[0] for t in fig.layout.xaxis.ticktext] == ["all", "single-hop", "two-hop", "odd"]
    assert "n = 40" in fig.layout.xaxis.ticktext[0]
    assert fig.data[0].error_y.array == pytest.approx([0.1] * 4)
    assert [trace.visible for trace in fig.data] == [True, True, False, False]


def test_table_keeps_texts_left_and_groups_apart():
    fig = tables.table(["a", "b"], [["group", ""], ["x", "1"]], groups=[0], title="T", **SAID)
    check(fig)
    assert fig.data[0].cells.align == ("left", "right")
    assert fig.data[0].cells.fill.color[0][0] != fig.data[0].cells.fill.color[0][1]


def test_table_cuts_texts_that_are_too_long_and_never_a_number():
    fig = tables.table(["a", "b"], [["x" * 300, "1" * 300]], title="T", **SAID)
    text, number = (column[0] for column in fig.data[0].cells.values)
    assert text.endswith("…") and text.count("<br>") == tables.MOST_LINES - 1 and number == "1" * 300


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
