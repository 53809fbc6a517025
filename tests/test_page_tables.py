"""The page table of a prompt says of every token in which slot it lies, and how far its key is shifted."""

from types import SimpleNamespace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from workbench.core.page_table import INVALID_POS
from workbench.engine.pages.page_tables import context_of, joined_pages, table_of

SIZE = 16


@given(
    blocks=st.lists(st.tuples(st.integers(1, 70), st.integers(0, 90)), max_size=6),
    rows=st.integers(1, 40),
    run=st.sampled_from((1, 2, 3)),
)
def test_every_token_of_a_prompt_is_found_where_its_block_was_cached(blocks, rows, run):
    context, slots, shifts, page = [], [], [], 1
    for length, start in blocks:
        numbers = np.arange(page, page - (-length // SIZE), dtype=np.int32)
        context.append(SimpleNamespace(length=length, start=start, numbers=numbers))
        shifts += [len(slots) - start] * length
        slots += range(page * SIZE, page * SIZE + length)
        page += len(numbers)
    places = np.arange(len(slots), len(slots) + rows, dtype=np.int32)
    own = np.arange(page, page - (-rows // SIZE), dtype=np.int32)
    table = table_of(context_of(joined_pages(context, SIZE), SIZE, run=run), own, places, SIZE)
    positions = table.every_position()
    seen = positions != INVALID_POS
    there = (table.numbers[:, None] * SIZE + np.arange(SIZE))[seen]
    assert positions[seen].tolist() == list(range(len(slots) + rows))
    assert there.tolist() == slots + list(range(page * SIZE, page * SIZE + rows))
    if table.shifts is None:
        assert not any(shifts)
    else:
        assert np.repeat(table.shifts, seen.sum(1)).tolist() == shifts + [0] * rows
        whole = table.shifts[: len(table) // table.run * table.run].reshape(-1, table.run)
        own_begin = (len(table) - len(own)) // table.run
        assert (whole[:own_begin] == whole[:own_begin, :1]).all(), "pages side by side are shifted alike"
