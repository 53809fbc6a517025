"""Rows over chosen tiles: lists, layouts of the cache and launch shapes that may not change the result."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton", reason="Triton is not available on this platform")

from tests.refusals import refused
from workbench.core.tiling.tiles import Tiles
from workbench.kernels import page_list_attention, tile_attention
from workbench.kernels._pages.lists import PageLists, pages
from workbench.kernels._shared.attention import Config
from workbench.kernels._tiles import reference as _tiles_reference
from workbench.kernels._tiles.hopper_lists import merge_pairs, merged_pairs

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def example(seed=0, batch=1, heads=(4, 2), count=50, length=80, width=64, size=32, queries=32, share=0.4):
    q, keys, values = _tiles_reference.pool(seed, batch, heads, count, length, width, DEVICE, torch.float32)
    rows = torch.arange(length - count, length).expand(batch, count)
    kept = _tiles_reference.random_choice(
        seed, batch, heads[0], -(-count // queries), length, size, share, rows, queries
    )
    return (q, keys, values, rows.to(DEVICE)), kept.to(DEVICE), size, queries


def close(a, b):
    torch.testing.assert_close(a, b, atol=1e-5, rtol=0)


def test_lists_hold_what_is_kept_in_rising_order():
    kept = torch.rand(3, 5, 7, generator=torch.Generator().manual_seed(0)) < 0.4
    indptr, indices = tile_attention.lists(kept)
    for n, one in enumerate(kept.flatten(0, 1)):
        assert indices[indptr[n] : indptr[n + 1]].tolist() == one.nonzero()[:, 0].tolist()


@given(st.integers(0, 2**32), st.integers(1, 5), st.sampled_from([1, 2, 40, 300, 700]), st.floats(0, 1))
@settings(max_examples=20, deadline=None)
def test_lists_of_two_query_tiles_are_merged_to_one_that_says_whose_each_tile_is(seed, tiles, columns, share):
    kept = torch.rand(2, tiles, columns, generator=torch.Generator().manual_seed(seed)) < share
    expected = merged_pairs(*tile_attention.lists(kept), tiles)
    got = merge_pairs(*(x.to(DEVICE) for x in tile_attention.lists(kept)), tiles, columns)
    assert got[0].tolist() == expected[0].tolist()
    assert got[1][: len(expected[1])].tolist() == expected[1].tolist()
    pairs = torch.zeros(2, -(-tiles // 2) * 2, columns, dtype=torch.bool)
    for n, (begin, end) in enumerate(itertools.pairwise(expected[0].tolist())):
        for entry in expected[1][begin:end].tolist():
            for half in (0, 1):
                pairs.view(-1, columns)[2 * n + half, entry // 4] = entry >> half & 1
    assert torch.equal(pairs[:, :tiles], kept) and not pairs[:, tiles:].any()


def test_every_tile_kept_is_dense_attention():
    arguments, kept, size, queries = example()
    everything = tile_attention.lists(torch.ones_like(kept))
    close(tile_attention.launch(*arguments, *everything, size, queries), tile_attention.launch(*arguments))


def test_dense_attention_is_torchs():
    (q, keys, values, rows), *_ = example(count=80)
    expected = torch.nn.functional.scaled_dot_product_attention(q, keys, values, is_causal=True, enable_gqa=True)
    close(tile_attention.launch(q, keys, values, rows), expected)


def test_the_reference_obeys_the_choice_as_tiles_define_it():
    (q, keys, values, rows), kept, size, queries = example(queries=32, size=32)
    seen = Tiles(kept[0], size).visible(q.shape[2], keys.shape[2]) & (
        torch.arange(keys.shape[2], device=DEVICE) <= rows[0, :, None]
    )
    expected = torch.nn.functional.scaled_dot_product_attention(q, keys, values, seen[None], enable_gqa=True)
    lists = tile_attention.lists(kept)
    close(tile_attention.reference(q, keys, values, rows, *lists, size, queries), expected)


@pytest.mark.parametrize(
    "config",
    [Config(16, 16, 4, 1), Config(32, 16, 4, 1, descriptors=True), Config(64, 64, 4, 1, descriptors=True)],
    ids=str,
)
def test_any_launch_shape_gives_the_same(config):
    arguments, kept, size, queries = example(1)
    lists = tile_attention.lists(kept)
    expected = tile_attention.reference(*arguments, *lists, size, queries)
    close(tile_attention.launch(*arguments, *lists, size, queries, config=config), expected)


def test_heads_that_choose_alike_may_share_a_list():
    arguments, kept, size, queries = example(2)
    shared = kept.any(1, keepdim=True)
    one = tile_attention.launch(*arguments, *tile_attention.lists(shared), size, queries)
    close(tile_attention.launch(*arguments, *tile_attention.lists(shared.expand_as(kept)), size, queries), one)


def test_keys_may_lie_token_by_token():
    (q, keys, values, rows), kept, size, queries = example(3)
    lists = tile_attention.lists(kept)
    turned = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, keys, values)]
    expected = tile_attention.launch(q, keys, values, rows, *lists, size, queries)
    close(tile_attention.launch(*turned, rows, *lists, size, queries), expected)


def test_a_prompt_in_chunks_is_the_prompt_at_once():
    (q, keys, values, rows), kept, size, queries = example(4, count=80, length=80)
    whole = tile_attention.launch(q, keys, values, rows, *tile_attention.lists(kept), size, queries)
    for at in (0, 32, 64):  # whole query tiles; the last is short
        part = kept[:, :, at // queries : at // queries + 1]
        chunk = (q[:, :, at : at + 32], keys[:, :, : at + 32], values[:, :, : at + 32], rows[:, at : at + 32])
        got = tile_attention.launch(*chunk, *tile_attention.lists(part.contiguous()), size, queries)
        close(got, whole[:, :, at : at + 32])


def test_pages_of_a_batch_equal_tiles_request_by_request():
    q, keys, values = _tiles_reference.pool(5, 2, (4, 2), 32, 96, 64, DEVICE, torch.float32)
    keys, values = keys.contiguous(), values.contiguous()
    rows = torch.arange(64, 96, device=DEVICE).expand(2, 32)
    kept = _tiles_reference.random_choice(5, 2, 4, 1, 96, 32, 0.3, rows, 32).to(DEVICE)
    choices = [Tiles(one, 32) for one in kept]
    got = page_list_attention.launch(q, keys, values, rows, pages(choices, 2, 2, 3))
    union = torch.stack([choice.union(2).kept for choice in choices])
    close(got, tile_attention.launch(q, keys, values, rows, *tile_attention.lists(union), 32, 32))


@pytest.mark.parametrize("change", [{"size": 48}, {"queries": 8}, {"queries": 64}])
def test_what_the_kernel_does_not_take_is_refused(change):
    arguments, kept, size, queries = example()
    options = {"size": size, "queries": queries, **change}
    refused(".", lambda: tile_attention.launch(*arguments, *tile_attention.lists(kept), **options))


def test_a_cache_that_is_not_made_of_whole_pages_is_refused():
    q, keys, values = _tiles_reference.pool(5, 1, (2, 2), 4, 50, 64, DEVICE, torch.float32)
    one = PageLists(torch.zeros(3, dtype=torch.int32), torch.zeros(0, dtype=torch.int32), 32, 1)
    refused("50 tokens", lambda: page_list_attention.launch(q, keys, values, torch.arange(46, 50)[None], one))
