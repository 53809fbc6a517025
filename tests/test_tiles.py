"""Tiles: a block-sparse choice means the same whichever way it is carried out."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention as attention

from tests.random_models import prompt_of
from tests.refusals import refused
from workbench.core.masks import block_attention, causal, sink, visible, window
from workbench.core.tiling import tiles as tiling
from workbench.core.tiling.tiles import Grid, Tiles, grid_of
from workbench.kernels._pages.lists import pages


@st.composite
def tiles(draw):
    heads, query, key = 2 * draw(st.integers(1, 3)), draw(st.integers(1, 4)), draw(st.integers(1, 5))
    bits = draw(st.lists(st.booleans(), min_size=heads * query * key, max_size=heads * query * key))
    return Tiles(torch.tensor(bits).view(heads, query, key), draw(st.integers(1, 5)))


@given(tiles(), st.data())
def test_a_token_is_visible_where_its_tile_is_kept(choice, data):
    rows = data.draw(st.integers(1, choice.kept.shape[1] * choice.size))
    length = data.draw(st.integers(1, choice.kept.shape[2] * choice.size))
    seen = choice.visible(rows, length)
    assert seen.shape == (choice.kept.shape[0], rows, length)
    for r in range(rows):
        for c in range(length):
            assert torch.equal(seen[:, r, c], choice.kept[:, r // choice.size, c // choice.size])


@given(tiles())
def test_a_union_only_adds_is_the_same_for_the_whole_group_and_is_what_pages_list(choice):
    union = choice.union(2)
    assert (union.kept >= choice.kept).all() and union.density >= choice.density
    assert (union.kept == union.kept[:, :1]).all() and torch.equal(union.kept[::2], union.kept[1::2])
    assert not (
        union.kept & ~choice.kept.any(1, keepdim=True).unflatten(0, (-1, 2)).any(1).repeat_interleave(2, 0)
    ).any()
    assert torch.equal(union.union(2).kept, union.kept)
    indptr, indices = choice.pages(2)
    union = choice.union(2).kept[::2, 0]
    assert indptr.dtype == indices.dtype == torch.int32 and indptr[0] == 0 and indptr[-1] == len(indices)
    for group in range(len(union)):
        assert indices[indptr[group] : indptr[group + 1]].tolist() == union[group].nonzero()[:, 0].tolist()


@given(tiles(), st.data())
def test_single_columns_are_visible_to_every_row(choice, data):
    length = data.draw(st.integers(1, choice.kept.shape[2] * choice.size))
    heads, rows = choice.kept.shape[0], choice.kept.shape[1] * choice.size
    bits = data.draw(st.lists(st.booleans(), min_size=heads * length, max_size=heads * length))
    columns = torch.tensor(bits).view(heads, length)
    both = Tiles(choice.kept, choice.size, columns)
    assert torch.equal(both.visible(rows, length), choice.visible(rows, length) | columns[:, None])
    whole = both.paged()
    assert whole.columns is None and (whole.visible(rows, length) >= both.visible(rows, length)).all()
    extra = whole.kept & ~choice.kept
    for head, _, j in extra.nonzero().tolist():
        assert columns[head, j * choice.size : (j + 1) * choice.size].any(), "no page without a reason"


def test_a_page_table_reads_the_cache_of_a_batch_in_place():
    """KV-head-major pages (CompactAttention, section 3.3): a row of the table attends to its pages of a flat cache."""
    torch.manual_seed(0)
    size, kv_heads, heads, capacity, width, rows = 4, 2, 3, 7, 16, 8
    lengths = (28, 20)
    keys, values = torch.randn(2, kv_heads, 28, width), torch.randn(2, kv_heads, 28, width)
    queries = torch.randn(2, 12, rows, width)  # two execution groups of 3 heads for each KV head
    choices = [Tiles(torch.rand(12, 2, -(-length // size)) < 0.3, size) for length in lengths]
    for choice in choices:
        choice.kept[..., 0] = True
    table = pages(choices, kv_heads, heads, capacity)
    assert (table.size, table.heads, len(table.indptr)) == (size, heads, 2 * kv_heads * 2 + 1)
    flat_keys, flat_values = (x.view(2 * kv_heads * capacity, size, width) for x in (keys, values))
    assert flat_keys.data_ptr() == keys.data_ptr(), "nothing is copied"
    for row in range(len(table.indptr) - 1):
        mine = table.indices[table.indptr[row] : table.indptr[row + 1]].long()
        batch, first = divmod(row * heads, 12)
        read = attention(
            queries[batch, first : first + heads], flat_keys[mine].flatten(0, 1), flat_values[mine].flatten(0, 1)
        )
        seen = choices[batch].union(heads).visible(rows, lengths[batch])[first : first + heads]
        k, v = (x[batch, first // 6, : lengths[batch]].expand(heads, -1, -1) for x in (keys, values))
        torch.testing.assert_close(read, attention(queries[batch, first : first + heads], k, v, seen))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda full: Tiles(full[0], 4), "heads, query tiles, key tiles"),
        (lambda full: Tiles(full.float(), 4), "float32"),
        (lambda full: Tiles(full, 0), "tile size 0"),
        (lambda full: Tiles(full, 4).visible(9, 8), "do not cover 9 rows and 8 keys"),
        (lambda full: Tiles(full[[0, 1, 1]], 4).union(2), "3 heads cannot be split into groups of 2"),
        (lambda full: Tiles(full, 4, torch.ones(3, 8, dtype=torch.bool)), "columns are .* for 2 heads"),
        (lambda full: Tiles(full, 4, torch.ones(2, 8)), "float32"),
        (
            lambda full: Tiles(full, 4, torch.ones(2, 5, dtype=torch.bool)).visible(4, 8),
            "columns for 5 keys do not cover 8",
        ),
        (
            lambda full: pages([Tiles(full, 4)], 1, 3, 9),
            "3 heads cannot share a page list: 2 query heads read 1 KV heads",
        ),
        (
            lambda full: pages([Tiles(full, 4)], 2, 2, 9),
            "2 heads cannot share a page list: 2 query heads read 2 KV heads",
        ),
        (lambda full: pages([Tiles(full, 4)], 1, 2, 1), "2 pages does not fit a cache of 1"),
        (lambda full: window(0), "window size 0"),
        (lambda full: sink(-1), "sink count -1"),
    ],
)
def test_tiles_columns_page_tables_and_mask_rules_that_do_not_fit(make, sentence):
    refused(sentence, make, torch.ones(2, 2, 2, dtype=torch.bool))


# --- Tiles of rows that stand anywhere: the geometry and the true attention below every sparse method
LENGTH = 119
ROWS = {
    "whole": torch.arange(LENGTH),
    "unaligned chunk": torch.arange(37, 70),
    "scattered": torch.tensor([0, 3, 4, 5, 17, 18, 40, 41, 42, 43, 66, 90, 91, 92, 93, 118]),
    "one row": torch.tensor([77]),
    "first row": torch.tensor([0]),
}


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("size", [1, 8, 50])
def test_a_grid_by_hand(rows, size):
    length = int(rows[-1]) + 1
    ours = Grid(rows, length, size)
    groups = [part.tolist() for part in rows.split(size)]
    assert ours.shape == (len(groups), -(-length // size))
    pairs = ours.pairs()
    for count in (0, 1, 3, 99):
        near, tail = ours.near_tiles(count), ours.tail(count, LENGTH)
        for i, group in enumerate(groups):
            assert (int(ours.first_positions[i]), int(ours.last_positions[i])) == (group[0], group[-1])
            assert bool(tail[i]) == (group[-1] >= (-(-LENGTH // size) - count) * size and count > 0)
            for j in range(ours.shape[1]):
                keys = range(j * size, min(length, (j + 1) * size))
                assert bool(ours.causal[i, j]) == any(key <= row for row in group for key in keys)
                assert bool(ours.own_tiles[i, j]) == any(row in keys for row in group)
                assert bool(near[i, j]) == any(0 <= row // size - j <= count for row in group)
                assert pairs[i, j] == sum(key <= row for row in group for key in keys)


def test_true_mass_of_tiles_by_hand():
    rows = ROWS["unaligned chunk"]
    torch.manual_seed(0)
    queries, keys = torch.randn(4, len(rows), 16), torch.randn(2, 70, 16)
    ours, peak = (f(queries, keys, Grid(rows, keys.shape[1], 8)) for f in (tiling.mass, tiling.peaks))
    for head in range(4):
        share = (queries[head] @ keys[head // 2].T / 4).masked_fill(
            torch.arange(keys.shape[1]) > rows[:, None], -torch.inf
        )
        for i, part in enumerate(share.softmax(-1).split(8)):
            for j, tile in enumerate(part.split(8, 1)):
                torch.testing.assert_close(ours[head, i, j], tile.sum(1).mean())
                torch.testing.assert_close(peak[head, i, j], tile.max())


def test_a_grid_is_made_once_for_all_layers_and_anew_when_its_rows_change():
    rows = torch.arange(64, 96)
    grid = grid_of(rows, 96, 16)
    assert grid_of(rows, 96, 16) is grid
    assert grid_of(rows, 96, 32) is not grid
    assert grid_of(rows.clone(), 96, 16) is not grid
    rows -= 16
    assert grid_of(rows, 96, 16).first_positions.tolist() == [48, 64]
    with torch.inference_mode():
        assert grid_of(torch.arange(8), 8, 4) is not grid_of(torch.arange(8), 8, 4)


# --- Mask rules against their definitions, token by token
LENGTHS = st.lists(st.integers(1, 6), min_size=2, max_size=6)


def dense(rule, size):
    positions = torch.arange(size)
    return visible(rule, positions, positions)


@given(LENGTHS)
def test_block_attention_is_its_definition(lengths):
    prompt = prompt_of(*lengths)
    owner = [i for i, length in enumerate(lengths) for _ in range(length)]
    last = len(lengths) - 1
    expected = [
        [c <= r and (owner[r] == owner[c] or owner[r] == last) for c in range(len(owner))] for r in range(len(owner))
    ]
    assert dense(block_attention(prompt), len(prompt)).tolist() == expected


@given(LENGTHS, st.integers(1, 4))
def test_what_is_generated_belongs_to_the_question(lengths, more):
    prompt = prompt_of(*lengths)
    grown = prompt_of(*lengths[:-1], lengths[-1] + more)
    size = len(grown)
    assert torch.equal(dense(block_attention(prompt), size), dense(block_attention(grown), size))


@given(st.integers(1, 12), st.integers(1, 15), st.integers(0, 15))
def test_a_window_and_a_sink_show_what_they_say(size, width, first):
    expected = [[c <= r and (r - c < width or c < first) for c in range(size)] for r in range(size)]
    assert dense(window(width) | sink(first), size).tolist() == expected


@given(st.integers(1, 10))
def test_a_rule_is_negated_and_names_its_parts(size):
    assert torch.equal(dense(~causal, size), ~dense(causal, size))
    assert str(causal & (window(3) | sink(1))) == "(causal & (window(3) | sink(1)))"


def test_any_function_is_a_rule_and_a_constant_answer_is_spread():
    assert visible(lambda row, col: torch.tensor(True), torch.arange(3), torch.arange(2)).tolist() == [[True] * 2] * 3
