"""Stores in front of other stores: what they show, record and hold back."""

import pytest

from tests.tier_cases import kv_of
from workbench.store import MemoryStore
from workbench.store.views import ReadOnlyStore, RecordingStore, StagingStore


@pytest.fixture
def store():
    store = MemoryStore()
    for i, key in enumerate("ab", 1):
        store.put(key, kv_of(i))
    return store


def test_a_read_only_store_keeps_nothing_and_shows_the_keys_it_is_given(store):
    view = ReadOnlyStore(store)
    view.put("c", kv_of(3))
    assert view.get("a") is store.get("a") and view.get("c") is None and "c" not in store
    assert ReadOnlyStore(store, {"a"}).get("a") is not None and ReadOnlyStore(store, {"a"}).get("b") is None


def test_a_recording_store_passes_on_what_it_records(store):
    view = RecordingStore(store)
    assert view.get("a") is store.get("a") and view.stored == set()
    view.put("c", kv_of(3))
    assert view.stored == {"c"} and len(store.get("c")) == 3


def test_a_staging_store_reads_through_and_holds_what_is_put(store):
    behind = MemoryStore()
    behind.put("z", kv_of(4))
    view = StagingStore(store, behind)
    view.put("a", kv_of(5))
    assert [len(view.get(key)) for key in "abz"] == [5, 2, 4] and view.get("gone") is None
    assert list(view.staged) == ["a"] and len(store.get("a")) == 1
