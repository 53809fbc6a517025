"""Alternative Path serves the same tokens and preparation, or `moved`; one copy of a chunk; in order a prefix cache."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from workbench.core.blocks import Block, Prompt
from workbench.core.errors import BadInput
from workbench.methods.prepare.after_system import AfterSystem
from workbench.metrics.kv.position_encoding import tiny
from workbench.store import MemoryStore, fingerprint
from workbench.store.tiering.alternative_path import AlternativePath, chain_keys

CHUNKS = [Block((10 + i, 20 + i)) for i in range(6)]
SYSTEM = Block((1, 2))
KEYS = chain_keys("weights", torch.float32, [SYSTEM])
ENCODINGS = ["after_system", "in_place"]
PROMPTS = st.lists(
    st.lists(st.integers(0, 5), min_size=1, max_size=5, unique=True).map(lambda at: [CHUNKS[i] for i in at]), max_size=8
)
A, B = CHUNKS[:2]


class PrefixCache:
    """A plain prefix cache: a chunk is found behind exactly the chunks that it was computed behind."""

    def __init__(self):
        self.kept = set()

    def serve(self, chunks):
        keys = [KEYS(chunk, chunks[:at]) for at, chunk in enumerate(chunks)]
        found = [key in self.kept for key in keys]
        self.kept |= set(keys)
        return found


def test_figure_10_a_chunk_is_found_behind_another_one():
    index = AlternativePath(KEYS)
    index.serve([B])
    first, second = index.serve([A, B])
    assert first.computed and not second.computed and second.moved
    b, a = index.serve([B, A])
    assert not b.computed and not b.moved
    assert not a.computed and a.moved and a.seen == 0 and a.tried == 2, "(system, b, a) fails, (system, a) is known"
    assert a.key == KEYS(A, []) and len(index) == 2


def test_the_longest_path_is_served_where_it_is_known():
    index = AlternativePath(KEYS, "in_place")
    index.serve([A, B])
    match = index.find([CHUNKS[2], A, B])[-1]
    assert match is not None and match.seen == 1 and match.moved, "b saw a, and not what now stands before a"
    assert index.find([A, B])[-1].moved is False


def test_what_saw_a_chunk_is_not_served_where_that_chunk_does_not_stand_before_it():
    index = AlternativePath(KEYS, "in_place")
    attacker, passage = A, B
    index.serve([attacker, passage])
    assert index.find([passage]) == [None] and index.find([CHUNKS[3], passage])[-1] is None
    (served,) = index.serve([passage])
    assert served.computed and served.seen == 0 and len(index) == 2, "the clean copy replaces the other one"


@given(PROMPTS, st.sampled_from(ENCODINGS))
def test_served_is_the_same_chunk_behind_what_the_match_says(prompts, encoding):
    index = AlternativePath(KEYS, encoding)
    for chunks in prompts:
        for at, (chunk, match) in enumerate(zip(chunks, index.serve(chunks), strict=True)):
            assert match.before == at and 0 <= match.seen <= at and match.moved == (match.seen < at)
            assert match.key == KEYS(chunk, chunks[at - match.seen : at]), "same tokens, same preparation"


@given(PROMPTS, st.sampled_from(ENCODINGS))
def test_there_is_one_copy_of_a_chunk_and_it_is_computed_at_most_twice(prompts, encoding):
    index, computed = AlternativePath(KEYS, encoding), []
    for chunks in prompts:
        matches = index.serve(chunks)
        computed += [chunk for chunk, match in zip(chunks, matches, strict=True) if match.computed]
        assert len(index) == len(set(index)) == len({chunk for prompt in prompts for chunk in prompt} & set(computed))
        assert all(match.key in index or encoding == "in_place" for match in matches)
    most = 1 if encoding == "after_system" else 2
    assert all(computed.count(chunk) <= most for chunk in computed)


@given(st.lists(st.integers(1, 6), max_size=8), st.sampled_from(ENCODINGS))
def test_where_the_order_never_changes_it_finds_what_a_prefix_cache_finds(lengths, encoding):
    index, plain = AlternativePath(KEYS, encoding), PrefixCache()
    for length in lengths:
        matches, found = index.serve(CHUNKS[:length]), plain.serve(CHUNKS[:length])
        assert [not match.computed for match in matches] == found
        if encoding == "in_place":
            assert not any(match.moved for match in matches) and set(index) == plain.kept


def test_looking_keeps_nothing_and_a_removed_chunk_is_not_found():
    index = AlternativePath(KEYS)
    assert index.find([A, B]) == [None, None] and len(index) == 0
    index.serve([A])
    index.remove(A)
    index.remove(B)
    assert index.find([A]) == [None] and KEYS(A, []) not in index


def test_an_unknown_encoding_is_refused():
    with pytest.raises(BadInput, match="encoding is 'alone': allowed are after_system, in_place"):
        AlternativePath(KEYS, "alone")


def test_its_keys_are_those_under_which_prepared_blocks_are_stored():
    model, store = tiny({"model_type": "llama"}), MemoryStore()
    AfterSystem()(model, [Prompt((SYSTEM, A, B, Block((7,))))], store)
    index = AlternativePath(chain_keys(fingerprint(model), model.dtype, [SYSTEM]))
    assert all(match.key in store for match in index.serve([B, A]))
