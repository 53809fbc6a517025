"""What is kept beside cached keys: completed from chunk to chunk, never of keys that are no more."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.random_models import model_of
from workbench.core.kv import KV
from workbench.core.kv_side_cache import Derived
from workbench.core.plan import Plan
from workbench.engine.assembly import empty
from workbench.engine.forward import PrefillRequest, prefill_many

LENGTH = 96


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 13), st.booleans()), min_size=1, max_size=12))
def test_what_is_kept_is_that_of_the_keys_as_they_are(writes):
    """Running sums stand for means: written anywhere, asked of any length, at any time."""
    keys, derived = torch.zeros(13, dtype=torch.long), Derived()

    def complete(sums, first):
        sums = torch.zeros(14, dtype=torch.long) if sums is None else sums
        sums[first + 1 :] = sums[first] + keys[first:].cumsum(0)
        return sums

    for number, (first, length, asked) in enumerate(writes, 1):
        keys[first] = number
        derived.changed(first)
        if asked:
            assert derived.completed("sums", length, complete)[length] == keys[:length].sum()


def test_what_fails_half_way_is_made_anew():
    derived = Derived()
    derived.completed("x", 8, lambda value, first: [first])

    def fails(value, first):
        value.append("half")
        raise MemoryError

    with pytest.raises(MemoryError):
        derived.completed("x", 16, fails)
    assert derived.completed("x", 16, lambda value, first: (value, first)) == (None, 0)


def test_chunks_complete_what_earlier_chunks_left_and_a_layer_that_is_written_again_starts_there():
    found = []

    def asked(queries, keys, rows, site):
        site.derived.completed("asked", keys.shape[1], lambda value, first: found.append((site.layer, first)))

    model = model_of("llama")
    tokens, kv = torch.arange(LENGTH) % 50, empty(model, LENGTH)
    for chunk in (*torch.arange(LENGTH).split(32), torch.arange(40, 60), torch.arange(60, LENGTH)):
        prefill_many(model, [PrefillRequest(tokens, Plan(chunk, sparse=asked), kv)], 1)
    assert [first for layer, first in found if layer == 0] == [0, 32, 64, 40, 60]


def test_a_copy_keeps_nothing_of_the_original():
    kv = KV.zeros([(1, 8)], 4, reserve=4)
    kv.derived(0).completed("x", 4, lambda value, first: "theirs")
    for copy in (kv.clone(), kv.slice(0, 4)):
        assert copy.derived(0).completed("x", 4, lambda value, first: (value, first)) == (None, 0)
    kv.grow(2)
    assert kv.derived(0).completed("x", 6, lambda value, first: (value, first)) == ("theirs", 4)
    kv.changed(1)
    assert kv.derived(0).completed("x", 6, lambda value, first: first) == 1
