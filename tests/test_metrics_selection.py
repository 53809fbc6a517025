"""Tokens and neighbours that methods choose: agreement, places, antecedents."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.random_models import Letters, prompt_of
from workbench import data
from workbench.core.errors import BadInput
from workbench.data.layouts import LAB
from workbench.metrics.kv.selection import agreement, antecedents, by_block, by_offset, chosen, summary


def test_selectors_agree_by_the_tokens_that_they_share():
    rows = {"a": [torch.tensor([1, 2, 3]), torch.tensor([1])], "b": [torch.tensor([2, 3, 4, 5]), torch.tensor([2])]}
    rows["none"] = [torch.arange(0)] * 2
    jaccard, smaller = agreement(rows), agreement(rows, "smaller")
    assert jaccard[0, 1] == pytest.approx((2 / 5 + 0) / 2) and smaller[0, 1] == pytest.approx((2 / 3 + 0) / 2)
    assert jaccard[0, 2] == 0 and math.isnan(smaller[0, 2]) and math.isnan(jaccard[2, 2])
    with pytest.raises(BadInput, match="measure"):
        agreement(rows, "cosine")
    with pytest.raises(BadInput, match="same prompts"):
        agreement({"a": [], "b": [torch.arange(1)]})


@given(st.lists(st.lists(st.sets(st.integers(0, 20)), min_size=2, max_size=2), min_size=1, max_size=4))
@settings(max_examples=30, deadline=None)
def test_agreement_is_symmetric_and_at_most_one(choices):
    rows = {str(i): [torch.tensor(sorted(c), dtype=torch.long) for c in each] for i, each in enumerate(choices)}
    for measure in ("jaccard", "smaller"):
        found = agreement(rows, measure)
        np.testing.assert_array_equal(found, found.T)
        assert not (found < 0).any() and not (found > 1).any()
        assert all(math.isnan(x) or x == 1 for x in found.diagonal())


def test_chosen_tokens_are_counted_by_block_and_by_place_in_it():
    prompts, rows = [prompt_of(2, 4, 8, 3), prompt_of(2, 4, 3)], [torch.tensor([2, 3, 6, 13]), torch.tensor([2])]
    masks = [chosen(choice, prompt) for choice, prompt in zip(rows, prompts, strict=True)]
    np.testing.assert_allclose(by_block(masks, prompts), [[2 / 4, 2 / 8], [1 / 4, np.nan]])
    np.testing.assert_allclose(by_offset(masks, prompts, bins=2), [[3 / 6, 1 / 6], [1 / 2, 0]])
    first, second = summary(by_block(masks, prompts), "some", [1, 2])
    assert (first["mean"], first["n"], second["n"]) == (pytest.approx(3 / 8), 2, 1)
    assert first["low"] <= first["mean"] <= first["high"] and second["low"] == second["high"] == 0.25


@given(sizes=st.lists(st.integers(1, 15), min_size=3, max_size=6), bins=st.integers(1, 12))
@settings(max_examples=30, deadline=None)
def test_a_constant_has_no_place(sizes, bins):
    prompt = prompt_of(*sizes)
    ones = [torch.ones(prompt.starts[-1])]
    assert np.nanmin(by_offset(ones, [prompt], bins)) == np.nanmax(by_offset(ones, [prompt], bins)) == 1
    assert (by_block(ones, [prompt]) == 1).all()


class Words(Letters):
    bos_token, bos_token_id = "\0", 0

    def __call__(self, texts, add_special_tokens=False, verbose=True):
        if isinstance(texts, str):
            return {"input_ids": [ord(letter) for letter in texts]}
        return {"input_ids": [[ord(letter) for letter in text] for text in texts]}

    def convert_ids_to_tokens(self, ids):
        return [chr(i) for i in ids]


def test_a_continued_passage_is_counted_once_and_found_by_the_passage_before_it():
    samples = data.load("lab", 16, 3, 10)
    prompts = LAB.prompts(samples, Words())
    before = {b: a for p in prompts for a, b in zip(p.context, p.context[1:], strict=False)}
    titles = {
        p.blocks[1 + i]
        for s, p in zip(samples, prompts, strict=True)
        for i, c in enumerate(s.ctxs)
        if c.title.startswith("Continued")
    }
    assert antecedents(samples, prompts, lambda block: [before[block]]) == (len(titles), len(titles))
    assert antecedents(samples, prompts, lambda block: [block]) == (0, len(titles)) and titles
