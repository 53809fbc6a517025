"""CompactAttention: what is selected is in the page table, and nothing else."""

from math import ceil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.by_tile import HEADS, ROWS, states
from tests.random_models import model_of, prompt_of
from workbench.core.plan import Plan
from workbench.core.tiling.tiles import Tiles
from workbench.engine.assembly import empty
from workbench.engine.forward import prefill
from workbench.methods import sparse
from workbench.methods.sparse.compact import Compact
from workbench.methods.sparse.quoka import Quoka


class Given(sparse.Sparse):
    """A choice that is known beforehand."""

    def __init__(self, kept, size):
        object.__setattr__(self, "kept", kept)
        object.__setattr__(self, "tile", size)

    size = property(lambda self: self.tile)

    def choose(self, queries, keys, grid, site):
        return grid.tiles(self.kept, len(queries))


@settings(max_examples=80)
@given(st.data())
def test_every_selected_block_is_in_the_table_and_nothing_else(data):
    """Coverage and minimality of section 3.2, for any mask, chunk and group; the last query blocks are no exception."""
    size, per, kv_heads = (
        data.draw(st.sampled_from([1, 3, 4])),
        data.draw(st.integers(1, 6)),
        data.draw(st.integers(1, 3)),
    )
    heads = data.draw(st.sampled_from([h for h in range(1, per + 1) if per % h == 0]))
    first, count = data.draw(st.integers(0, 17)), data.draw(st.integers(1, 14))
    rows = torch.arange(first, first + count)
    shape = (per * kv_heads, ceil(count / size), ceil((first + count) / size))
    seed, density = data.draw(st.integers(0, 9999)), data.draw(st.sampled_from([0.0, 0.1, 0.5, 1.0]))
    kept = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < density
    q, k = torch.zeros(shape[0], count, 2), torch.zeros(kv_heads, first + count, 2)
    before, after = (choose(q, k, rows) for choose in (Given(kept, size), Compact(Given(kept, size), heads)))
    assert (after.kept >= before.kept).all(), "union ⊇ mask"
    indptr, indices = after.pages(heads)
    chunk = {row // size for row in rows.tolist()}
    for group in range(len(indptr) - 1):
        table = indices[indptr[group] : indptr[group + 1]].tolist()
        mask = before.kept[group * heads : (group + 1) * heads]
        selected = {j for _, _, j in mask.nonzero().tolist()}
        assert table == sorted(selected | chunk)
    for i in range(shape[1]):
        last = int(rows[i * size : i * size + size][-1]) // size
        assert not after.kept[:, i, last + 1 :].any()


@pytest.mark.parametrize(("asked", "group"), [(0, 6), (3, 3), (2, 2), (6, 6), (16, 6)])
def test_an_execution_group_is_the_gqa_group_or_a_part_of_it(asked, group):
    assert Compact("dense", asked).group(12, 2) == group
    torch.manual_seed(0)
    q, k = torch.randn(12, 8, 4), torch.randn(2, 64, 4)
    kept = Compact("oracle(block=4, mass=0.2)", asked)(q, k, torch.arange(56, 64)).kept
    assert all(torch.equal(kept[h], kept[h // group * group]) for h in range(12))
    assert group == 6 or any(not torch.equal(kept[h], kept[h // 6 * 6]) for h in range(12))


@pytest.mark.parametrize("size", [1, 4, 5, 6, 7, 8])
def test_gqa_groups_of_any_size_share_one_table_by_default(size):
    """Qwen2.5 has groups of 5, 6 and 7; the paper's execution group is the GQA group."""
    assert Compact("dense").group(2 * size, 2) == size
    torch.manual_seed(0)
    q, k = torch.randn(2 * size, 8, 4), torch.randn(2, 64, 4)
    before, after = (
        sparse.named(spec)(q, k, torch.arange(56, 64)).kept
        for spec in ("oracle(block=4, mass=0.2)", "compact(over=oracle(block=4, mass=0.2))")
    )
    for group in range(2):
        part = slice(group * size, (group + 1) * size)
        assert torch.equal(after[part, 0, :14], before[part, :, :14].any(0).any(0).expand(size, -1))


def test_chosen_tokens_count_as_their_page():
    rows, (q, k) = ROWS[1], states(ROWS[1])
    tokens = Quoka(keep=0.1, block=8)(q, k, rows)
    union = Compact(Quoka(keep=0.1, block=8))(q, k, rows)
    assert union.columns is None
    for head in range(HEADS):
        pages = {int(c) // 8 for c in tokens.columns[head // 2 * 2].nonzero()}
        assert set(union.kept[head, -1].nonzero()[:, 0].tolist()) == pages


def test_a_union_chunk_by_chunk_stays_within_the_keys():
    """One-shot, the union over all query blocks is nearly everything; by chunks it is not."""
    model, prompt = model_of("llama"), prompt_of(30, 50)
    choice = Compact("window(block=4, sink=1, local=1)")
    whole = prefill(model, prompt.tokens, Plan(torch.arange(80), sparse=choice), empty(model, 80)).logits
    dense = prefill(model, prompt.tokens, Plan(torch.arange(80)), empty(model, 80)).logits
    torch.testing.assert_close(whole, dense, atol=1e-5, rtol=1e-4)


def test_union_of_columns_goes_by_group():
    columns = torch.zeros(4, 9, dtype=torch.bool)
    columns[0, 3] = columns[3, 8] = True
    tiles = Tiles(torch.zeros(4, 2, 3, dtype=torch.bool), 3, columns).union(2)
    assert [row.nonzero()[:, 0].tolist() for row in tiles.columns] == [[3], [3], [8], [8]]
