"""Tiles: a block-sparse choice means the same whichever way it is carried out."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention as attention

from workbench.errors import BadInput
from workbench.tiles import Tiles


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
def test_a_union_only_adds_and_is_the_same_for_the_whole_group(choice):
    union = choice.union(2)
    assert (union.kept >= choice.kept).all() and union.density >= choice.density
    assert (union.kept == union.kept[:, :1]).all() and torch.equal(union.kept[::2], union.kept[1::2])
    assert not (
        union.kept & ~choice.kept.any(1, keepdim=True).unflatten(0, (-1, 2)).any(1).repeat_interleave(2, 0)
    ).any()
    assert torch.equal(union.union(2).kept, union.kept)


@given(tiles())
def test_pages_list_exactly_the_union(choice):
    indptr, indices = choice.pages(2)
    union = choice.union(2).kept[::2, 0]
    assert indptr.dtype == indices.dtype == torch.int32 and indptr[0] == 0 and indptr[-1] == len(indices)
    for group in range(len(union)):
        assert indices[indptr[group] : indptr[group + 1]].tolist() == union[group].nonzero()[:, 0].tolist()


def test_reading_pages_is_attending_under_the_union():
    torch.manual_seed(0)
    choice = Tiles(torch.rand(4, 3, 6) < 0.3, size=8)
    choice.kept[..., 0] = True
    q, k, v = torch.randn(4, 24, 16), torch.randn(2, 48, 16), torch.randn(2, 48, 16)
    masked = attention(q[None], k[None], v[None], choice.union(2).visible(24, 48), enable_gqa=True)[0]
    indptr, indices = choice.pages(2)
    for group in range(2):
        pages = indices[indptr[group] : indptr[group + 1]].long()
        keys, values = (x[group].unflatten(0, (-1, 8))[pages].flatten(0, 1)[None] for x in (k, v))
        heads = slice(2 * group, 2 * group + 2)
        torch.testing.assert_close(attention(q[heads], keys, values), masked[heads])


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Tiles(torch.ones(2, 2, dtype=torch.bool), 4), "heads, query tiles, key tiles"),
        (lambda: Tiles(torch.ones(2, 2, 2), 4), "float32"),
        (lambda: Tiles(torch.ones(2, 2, 2, dtype=torch.bool), 0), "tile size 0"),
        (lambda: Tiles(torch.ones(2, 2, 2, dtype=torch.bool), 4).visible(9, 8), "do not cover 9 rows and 8 keys"),
        (lambda: Tiles(torch.ones(3, 2, 2, dtype=torch.bool), 4).union(2), "3 heads cannot be split into groups of 2"),
    ],
)
def test_tiles_that_do_not_fit(make, sentence):
    with pytest.raises(BadInput, match=sentence):
        make()
