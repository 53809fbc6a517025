"""Functions that shape records into tables, figures and sentences: prompts, masks, attention, positions."""

import numpy as np
import pytest
import torch

from tests.figure_views import PROMPT, rows, texts, view_of
from workbench.core.kv import KV
from workbench.core.masks import block_attention, causal
from workbench.data import prompt_view
from workbench.methods.generation import generate
from workbench.metrics import attention_mass
from workbench.metrics.attention_mass import AttentionMass
from workbench.metrics.kv import position_encoding
from workbench.plots.attention import masks
from workbench.plots.kv import position_encoding as position_figures


def mass_of(tokens: list[list[list[float]]], blocks: torch.Tensor | None = None) -> AttentionMass:
    kv = KV([torch.zeros(1, 12, 4)], [torch.zeros(1, 12, 4)], 0)
    blocks = torch.zeros(1, 1, 3, 3) if blocks is None else blocks
    return AttentionMass(torch.tensor(tokens), blocks, torch.zeros(5), kv)


def test_masks_are_compared_on_one_prompt_and_cached_rows_are_pale():
    rules = {"Full attention": causal, "Reuse": block_attention(PROMPT)}
    fig = masks.compare_masks(rules, view_of(), cached=["Reuse"], own="window(3)")
    full, reuse = fig.data[1], fig.data[3]
    assert full.z[4, 4] == 1 and reuse.z[4, 4] == 1 + 3, "a passage's own colour, then its pale one"
    assert reuse.z[11, 4] == 1, "the question is computed"
    assert "Your rule: window(3)." in texts(fig) and "cells" not in texts(fig)


def test_pairs_are_counted_over_the_rows_that_a_request_computes():
    rules = {"Full attention": causal, "Cached blocks (pale)": block_attention(PROMPT)}
    full, reuse = masks.count_pairs(rules, PROMPT, cached=["Cached blocks (pale)"])
    assert full == {"mask": "Full attention", "pairs": 78, "computed": 78, "causal": 78, "rows": 12, "length": 12}
    assert reuse["mask"] == "Cached blocks" and reuse["rows"] == 4
    assert reuse["pairs"] == 6 + 15 + 42 and reuse["computed"] == 9 + 10 + 11 + 12
    bars = masks.request_savings([full, reuse], "a text").data
    assert [list(trace.x) for trace in bars] == [[1, 63 / 78], [1, 42 / 78]]


def test_answers_under_masks_are_those_of_generation_and_the_first_rule_is_no_distance_away(loaded):
    model, tokenizer, layout = loaded
    view = prompt_view.of_text("Ada lives in Wilby.\n\nBen is a potter.", "Where is Ada?", tokenizer, layout)
    rules = {"full": causal, "block": block_attention(view.prompt)}
    found = {name: attention_mass.masked(model, view.prompt, rule) for name, rule in rules.items()}
    records = attention_mass.answers_under(loaded, view, rules, found, 4)
    (full,) = generate(model, tokenizer, [view.prompt], "full", max_new_tokens=4, stop=layout.stop)
    (block,) = generate(model, tokenizer, [view.prompt], "block", max_new_tokens=4, stop=layout.stop)
    assert [r["answer"] for r in records] == [full.text.strip(), block.text.strip()]
    assert records[0]["kl"] == 0 < records[1]["kl"]
    assert [r["right"] for r in records] == [None, None]
    table = masks.answers_table(records, view, about="tiny", device="CPU")
    assert [row[0] for row in rows(table)] == ["full", "block"] and rows(table)[0][2] == "–"


def test_positions_of_blocks_are_those_of_the_passages_by_default():
    assert attention_mass.positions_of(PROMPT).nonzero().flatten().tolist() == [3, 4, 5, 6, 7]
    assert attention_mass.positions_of(PROMPT, (0, 2)).nonzero().flatten().tolist() == [0, 1, 2, 8, 9, 10, 11]


def test_attention_to_other_blocks_is_what_passages_do_not_pay_themselves():
    blocks = torch.zeros(1, 2, 4, 4)
    blocks[:, :, 1, 1] = 0.5
    blocks[:, 0, 2, 2], blocks[:, 1, 2, 2] = 1.0, 0.5
    assert attention_mass.to_other_blocks(mass_of([[[1.0]]], blocks)) == pytest.approx(1 - (0.5 + 0.75) / 2)


def test_the_head_that_naive_positions_change_most_also_looks_at_the_answer():
    wanted = torch.tensor([True, False, False])
    full = mass_of([[[0.9, 0.1, 0.0], [0.6, 0.4, 0.0]], [[0.0, 0.1, 0.9], [0.9, 0.1, 0.0]]])
    naive = mass_of([[[0.9, 0.1, 0.0], [0.0, 0.4, 0.6]], [[1.0, 0.0, 0.0], [0.8, 0.2, 0.0]]])
    assert attention_mass.most_changed({"full": full, "naive": naive}, wanted) == (0, 1)


def test_the_slider_of_a_rotating_key_stands_at_a_distance():
    speeds, place = np.array([1.0, 0.1]), np.ones((3, 2, 2))
    rotated = position_encoding.KeyRotation((0, 7), speeds, np.ones((2, 2)), (0, 16, 64), place)
    fig = position_figures.rotating_key(rotated, "<Ada>", distance=32, about="tiny")
    assert fig.layout.sliders[0].active == 2 and "2 channel pairs of the key of “&lt;Ada&gt;”" in texts(fig)
    assert position_figures.rotating_key(rotated, "Ada", distance=999, about="tiny").layout.sliders[0].active == 2
    angles = position_encoding.angles(rotated)
    assert angles[3] == {"distance": 16, "pair": 7, "turned_radians": pytest.approx(1.6)} and len(angles) == 6


def test_frequencies_fall_from_one_to_nearly_the_inverse_of_the_base():
    frequencies = position_encoding.rope_frequencies(1e4, 4)
    assert frequencies.dtype == torch.float64
    assert frequencies.tolist() == pytest.approx([1.0, 1e-2])


def test_rounding_and_differences_are_drawn_as_measured():
    records = position_encoding.shift_errors(position_encoding.rope_frequencies(1e4, 16), [1, 1024], 4)
    drawn = {trace.y[-1] for trace in position_figures.scheme_errors(records, about="4 keys").data if trace.name}
    assert {r["error"] for r in records if r["distance"] == 1024} <= drawn
    records = [{"family": "llama", "keys": 1e-7, "values": 0.0, "logits": 2e-7, "naive": 1e-3, "distance": 84}]
    expected = [("llama", "1.0e-07", "0.0e+00", "2.0e-07", "1.0e-03", "5,000 ×")]
    assert rows(position_figures.family_table(records)) == expected
    assert "up to 84 tokens" in texts(position_figures.family_differences(records, seed=0, device="CPU"))
