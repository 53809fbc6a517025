"""Rows over pages: what the order of pages, the number of parts, stale entries and other requests may not change."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton", reason="Triton is not available on this platform")

from workbench.core.page_table import INVALID_POS, Paged
from workbench.kernels import q_sparse_attention, question_attention
from workbench.kernels._pages import block_scores
from workbench.kernels._pages import case as _pages_case
from workbench.kernels._pages import triton_kernel as _pages_triton
from workbench.kernels._shared.attention import Config

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
KERNELS = (question_attention, q_sparse_attention)


def example(seed=0, **changes):
    options = {"contexts": [[0, 1], [1]], "blocks": [41, 22], "questions": [3, 2], "recompute": 0.2, **changes}
    return _pages_case.case(seed, DEVICE, torch.float32, **options)


def close(a, b):
    torch.testing.assert_close(a, b, atol=1e-5, rtol=0)


@settings(max_examples=6)
@given(splits=st.integers(1, 9), keys=st.sampled_from((16, 64)), rows=st.sampled_from((16, 64)), seed=st.integers(0, 3))
def test_any_number_of_parts_and_any_tile_give_the_same(splits, keys, rows, seed):
    arguments = example(seed)
    config = Config(rows, keys, 4, 1)
    close(question_attention.launch(*arguments, splits=splits, config=config), _pages_triton.reference(*arguments))


@settings(max_examples=4)
@given(seed=st.integers(0, 10_000), shifted=st.booleans())
def test_the_order_of_pages_changes_nothing(seed, shifted):
    q, keys, values, rows, pages, inv_freq, pairing = example(1, pairing="neox" if shifted else None)
    order = torch.randperm(pages.table.shape[1], generator=torch.Generator().manual_seed(seed)).to(DEVICE)
    shifts = None if pages.shifts is None else pages.shifts[:, order]
    other = Paged.of(pages.table[:, order], pages.positions[:, order], shifts)
    expected = question_attention.launch(q, keys, values, rows, pages, inv_freq, pairing)
    close(question_attention.launch(q, keys, values, rows, other, inv_freq, pairing), expected)


@pytest.mark.parametrize("kernel", KERNELS)
def test_pages_may_lie_anywhere_in_the_pool(kernel):
    q, keys, values, rows, pages, *rest = example(2)
    size = pages.positions.shape[-1]
    where = torch.randperm(keys.shape[1] // size, generator=torch.Generator().manual_seed(5)).to(DEVICE)
    slots = (where.argsort()[:, None] * size + torch.arange(size, device=DEVICE)).flatten()
    moved = dataclasses.replace(pages, table=where[pages.table.long()].int())
    expected = kernel.launch(q, keys, values, rows, pages, *rest)
    close(kernel.launch(q, keys[:, slots], values[:, slots], rows, moved, *rest), expected)


@pytest.mark.parametrize("kernel", KERNELS)
def test_stale_entries_are_never_read(kernel):
    """Slots at INVALID_POS are NaN in every example; recomputing tokens with their own cached KV changes nothing."""
    q, keys, values, rows, pages, *_ = example(3, recompute=0.0)
    expected = kernel.launch(q, keys, values, rows, pages)
    assert not expected.isnan().any()
    stale = pages.positions[0, 0].clone()
    copied = torch.cat((keys, keys[:, pages.table[0, 0] * 16 :][:, :16]), 1)
    copied_values = torch.cat((values, values[:, pages.table[0, 0] * 16 :][:, :16]), 1)
    own = torch.full((2, 1), keys.shape[1] // 16, device=DEVICE)
    mine = torch.stack((stale, torch.full_like(stale, INVALID_POS)))[:, None]
    positions = torch.cat((pages.positions, mine), 1)
    positions[0, 0] = INVALID_POS
    again = Paged.of(torch.cat((pages.table, own), 1), positions)
    close(kernel.launch(q, copied, copied_values, rows, again), expected)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_request_is_served_as_if_it_were_alone(kernel):
    q, keys, values, rows, pages, *_ = example(4)
    together = kernel.launch(q, keys, values, rows, pages)
    for b in range(len(q)):
        alone = Paged.of(pages.table[b : b + 1], pages.positions[b : b + 1])
        close(kernel.launch(q[b : b + 1], keys, values, rows[b : b + 1], alone)[0], together[b])


@pytest.mark.parametrize("kernel", KERNELS)
def test_whole_pages_need_not_be_searched_for_invalid_slots(kernel):
    q, keys, values, rows, pages, *_ = example(5)
    dense = Paged.of(pages.table, pages.positions, partial_pages=False)
    close(kernel.launch(q, keys, values, rows, dense), _pages_triton.reference(q, keys, values, rows, pages))


def test_rotating_queries_back_is_rotating_keys_on():
    q, keys, values, rows, pages, inv_freq, pairing = example(6, pairing="neox", recompute=0.0, questions=[2, 2])
    assert pages.shifts.any()
    still = dataclasses.replace(pages, shifts=torch.zeros_like(pages.shifts))
    moved = question_attention.launch(q, keys, values, rows, pages, inv_freq, pairing)
    assert (moved - question_attention.launch(q, keys, values, rows, still, inv_freq, pairing)).abs().max() > 0.01


def test_partial_rotation_rotates_the_first_channels_only():
    q, keys, values, rows, pages, inv_freq, pairing = example(7, pairing="neox", width=64)
    some = inv_freq[::2].contiguous()  # 32 of 64 channels
    arguments = (q, keys, values, rows, pages, some, pairing)
    close(question_attention.launch(*arguments), _pages_triton.reference(*arguments))


def test_a_row_before_every_key_and_a_missing_row_are_zero():
    q, keys, values, rows, pages, *_ = example(8)
    shifted = dataclasses.replace(pages)
    late = Paged.of(shifted.table, torch.where(pages.positions == INVALID_POS, INVALID_POS, pages.positions + 10_000))
    assert not question_attention.launch(q, keys, values, rows, late).any()
    assert not question_attention.launch(q, keys, values, torch.full_like(rows, -1), pages).any()


def test_a_scale_of_the_model_is_used():
    q, keys, values, rows, pages, inv_freq, pairing = example(9)
    arguments = (q, keys, values, rows, pages, inv_freq, pairing, 0.5)
    close(question_attention.launch(*arguments), _pages_triton.reference(*arguments))


@pytest.mark.parametrize("pairing", [None, "neox", "interleaved"])
def test_pages_are_copied_out_in_the_order_of_their_positions(pairing):
    _, keys, values, rows, pages, inv_freq, turn = example(3, pairing=pairing, recompute=0.4)
    for own, expected in zip(
        q_sparse_attention.gather_pages(keys, values, pages, inv_freq, turn),
        q_sparse_attention.gathered(keys, values, pages, inv_freq, turn),
        strict=True,
    ):
        for b, row in enumerate(rows.tolist()):
            close(own[b, :, : max(row) + 1], expected[b, :, : max(row) + 1])


def test_rows_over_pages_are_the_same_read_in_place_and_copied_out():
    arguments = example(4, recompute=0.3)
    unknown = dataclasses.replace(arguments[4], length=None)
    close(q_sparse_attention.launch(*arguments), q_sparse_attention.launch(*arguments[:4], unknown, *arguments[5:]))


# --- block_scores: attention that tokens of cached blocks get from a question
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16 if DEVICE == "cuda" else torch.float16])
def test_scores_within_blocks_equal_their_reference(dtype):
    for case in block_scores.cases(DEVICE, dtype):
        assert block_scores.takes(case[1], [case[3]] * len(case[1]))
        found, wanted = block_scores.launch(*case), block_scores.reference(*case)
        torch.testing.assert_close(found, wanted, atol=1e-4 if dtype == torch.float32 else 2e-3, rtol=1e-3)
        layers, heads, rows = case[0].shape[:3]
        parts = [found.sum()] if case[-1] else [part.sum() for part in found.split(list(case[2].lengths))]
        sums = torch.stack(parts)
        torch.testing.assert_close(sums, torch.full_like(sums, layers * heads * rows), atol=1e-2, rtol=1e-4)


@pytest.mark.parametrize("number", [4, 5])
def test_scores_are_the_same_where_layers_are_taken_one_by_one(number, monkeypatch):
    case = list(block_scores.cases(DEVICE, torch.float32))[number]
    whole = block_scores.launch(*case)
    monkeypatch.setattr(block_scores, "MOST", 1)
    torch.testing.assert_close(block_scores.launch(*case), whole)


def test_no_block_has_no_scores():
    (queries, keys, _, inv_freq, pairing, page, *_), *_ = block_scores.cases(DEVICE, torch.float32)
    nothing = block_scores.Blocks([], [], [])
    for way in (block_scores.launch, block_scores.reference):
        assert way(queries, keys, nothing, inv_freq, pairing, page).shape == (0,)
