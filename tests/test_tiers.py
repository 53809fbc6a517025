"""Tiers: hot blocks above, cold ones below, never over a budget, and what is read is what was written."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event as Signal
from threading import Thread

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.random_models import block_of, model_of
from tests.refusals import refused
from tests.tier_cases import KEYS, Shelf, kv_of, two
from workbench.core.blocks import Block, Prompt
from workbench.core.kv import KV
from workbench.engine.encoding import encode
from workbench.methods.prepare.after_system import AfterSystem
from workbench.metrics.kv.position_encoding import tiny
from workbench.store import FolderStore, MemoryStore, fingerprint, key_of
from workbench.store.events import Events
from workbench.store.remote import RemoteStore
from workbench.store.tiering.alternative_path import AlternativePath, chain_keys
from workbench.store.tiering.quantized import quantize, size_in_bytes
from workbench.store.tiering.tier import Heat, HostTier, StoreTier
from workbench.store.tiering.tiered_store import TieredStore
from workbench.store.views import ReadOnlyStore, RecordingStore, StagingStore


class Model(RuleBasedStateMachine):
    """Three tiers against a dictionary of what was written."""

    @initialize(host=st.integers(3, 12), disk=st.integers(3, 20), last=st.one_of(st.none(), st.integers(3, 20)))
    def begin(self, host, disk, last):
        self.budgets = [16 * host, 16 * disk, last and 16 * last]
        names = ("host", "disk", "remote")
        shelves = [StoreTier(Shelf(), budget, name) for name, budget in zip(names[1:], self.budgets[1:], strict=True)]
        self.store, self.written = TieredStore([HostTier(self.budgets[0]), *shelves]), {}

    @rule(key=st.sampled_from(KEYS), tokens=st.integers(1, 22), fill=st.integers(1, 9))
    def put(self, key, tokens, fill):
        if all(budget and 16 * tokens > budget for budget in self.budgets):
            refused("larger than every budget", self.store.put, key, kv_of(tokens, fill))
            return
        self.store.put(key, kv_of(tokens, fill))
        self.written[key] = tokens, float(fill)
        assert key in self.store, "what was just written fits somewhere"

    @rule(key=st.sampled_from(KEYS))
    def get(self, key):
        there, kv = self.store.tier_of(key), self.store.get(key)
        assert (kv is not None) == (there is not None)
        if kv is None:
            reason = self.store.recent[-1].reason
            assert reason == ("evicted" if key in self.written else "never seen")
            return
        assert kv.read_only and (len(kv), float(kv.keys[0][0, 0, 0])) == self.written[key]
        assert bool((kv.values[0] == -self.written[key][1]).all())

    @invariant()
    def holds(self):
        if not hasattr(self, "store"):
            return
        for tier, budget in zip(self.store.tiers, self.budgets, strict=True):
            assert budget is None or tier.bytes <= budget
            assert tier.bytes == sum(16 * self.written[key][0] for key in tier)
        if self.budgets[2] is None:
            assert set(self.written) == {key for key in KEYS if key in self.store}, "nothing is lost without need"
        for tier in self.store.tiers[1:]:
            assert sorted(tier) == sorted(tier.store.held)


TestModel = Model.TestCase


TestModel.settings = settings(max_examples=60, stateful_step_count=25)


def test_the_coldest_block_moves_down_and_comes_back_up():
    store = two(48, events=Events())
    for key in "ab":
        store.put(key, kv_of(1))
    store.get("a")
    store.put("c", kv_of(1))
    store.put("d", kv_of(1))
    assert [store.tier_of(key) for key in "abcd"] == ["host", "disk", "host", "host"], "b was used least"
    found = store.find("b")
    assert found.tier == "disk" and store.tier_of("b") == "host"
    assert [(row["hits"], row["read"], row["evictions"]) for row in store.by_tier()] == [(1, 16, 2), (1, 16, 0)]
    kinds = [event.what for event in store.events]
    assert kinds.count("evict") == 2 and kinds.count("write") == 2 and kinds.count("read") == 1
    assert store.stats.hits == 2 and store.stats.entries == 4


def test_frequency_counts_and_what_was_hot_long_ago_cools_down():
    heat = Heat()
    heat.add("old")
    for _ in range(5):
        heat.use("old")
    evicted = []
    for number in range(20):  # each used twice
        heat.add(f"{number}")
        heat.use(f"{number}")
        if len(heat) > 3:
            key = next(iter(heat.coldest()))
            heat.remove(key, evicted=True)
            evicted.append(key)
    assert evicted[0] == "0" and "old" in evicted and heat.of("old") == 0


@given(st.lists(st.tuples(st.sampled_from("aur"), st.sampled_from(KEYS)), max_size=60))
def test_the_coldest_come_first_and_their_books_do_not_grow(steps):
    heat, there = Heat(), set()
    for what, key in steps:
        if what == "a":
            heat.add(key)
            there.add(key)
        elif what == "u":
            heat.use(key)
        else:
            heat.remove(key)
            there.discard(key)
        order = list(heat.coldest())
        assert sorted(order) == sorted(there) and [heat.of(k) for k in order] == sorted(heat.of(k) for k in there)
    assert len(heat._heap) <= 64 + 2 * len(heat) + 1


def test_a_block_that_left_the_last_tier_says_when_and_why():
    store = two(16, 16, clock=lambda: 0.0)
    for key in "abc":
        store.put(key, kv_of(1))
    assert store.get("a") is None
    assert str(store.recent[-1]) == "evicted: 1970-01-01 00:00:00 UTC, to make room in disk (16 bytes)"
    assert store.stats.reasons == {"evicted": 1}


def test_threads_keep_the_books():
    store = two(64, 96)

    def work(seed):
        draw = torch.Generator().manual_seed(seed)
        for _ in range(150):
            key = KEYS[int(torch.randint(8, (1,), generator=draw))]
            if (kv := store.get(key)) is None:
                store.put(key, kv_of(1, KEYS.index(key) + 1))
            else:
                assert float(kv.keys[0][0, 0, 0]) == KEYS.index(key) + 1

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    for tier in store.tiers:
        assert tier.bytes == 16 * len(tier) <= tier.budget_bytes
    assert store.stats.hits + store.stats.misses == 600
    assert not store.chain._moving and not store._loading


def test_a_block_that_is_put_again_keeps_its_copy_below_where_its_key_says_its_content():
    key, kv = key_of("m", torch.float32, block_of(1)), kv_of(1)
    store = two(64, write="through")
    for name in (key, "a"):
        store.put(name, kv)
    store.write = "back"
    for name in (key, "a"):
        store.put(name, kv)
    assert list(store.tiers[1]) == [key]


@given(st.integers(1, 9), st.integers(0, 5), st.floats(1e-6, 1e6))
def test_eight_bits_lose_at_most_half_a_step(tokens, seed, scale):
    torch.manual_seed(seed)
    kv = KV([torch.randn(2, tokens, 4) * scale], [torch.randn(2, tokens, 4) * scale], start=3)
    rounded = quantize(kv)
    back = rounded.restore()
    for mine, theirs, over in ((back.keys[0], kv.keys[0], 1), (back.values[0], kv.values[0], 2)):
        step = theirs.abs().amax(over, keepdim=True) / 127
        assert bool(((mine - theirs).abs() <= step * 0.501).all())
    assert back.read_only and back.start == 3 and rounded.nbytes == size_in_bytes(kv)


def test_a_tier_of_eight_bits_holds_more_blocks():
    kv = encode(model_of(), block_of(64)).lock()
    plain, rounded = HostTier(kv.nbytes), HostTier(kv.nbytes, storage="int8")
    assert rounded.bytes_needed(kv) < 0.4 * plain.bytes_needed(kv) == 0.4 * kv.nbytes
    store = TieredStore([rounded])
    store.put("a", kv)
    store.put("b", kv)
    assert len(rounded) == 2 and rounded.bytes == 2 * rounded.bytes_needed(kv)
    torch.testing.assert_close(store.get("a").keys[0], kv.keys[0], atol=0.05 * float(kv.keys[0].abs().max()), rtol=0)
    broken = kv.clone()
    broken.keys[0][0, 0, 0] = float("nan")
    refused("not finite", store.put, "c", broken)
    refused("storage is 'int4'", HostTier, storage="int4")
    refused("not page-locked", HostTier, storage="int8", pinned=True)


# --- Tiers that lie in stores: disks that are full or fail, files that come and go, blocks on their way, budgets
def test_a_disk_that_is_full_costs_an_encoding_and_no_answer():
    store = two(16)
    store.tiers[1].store.broken = True
    for key in "ab":
        store.put(key, kv_of(1))
    assert store.get("b") is not None and store.get("a") is None
    assert "no space left" in store.recent[-1].detail


def test_a_disk_that_cannot_be_written_to_keeps_what_it_holds():
    store = two(16, 16)
    store.put("a", kv_of(1))
    store.put("b", kv_of(1))
    store.tiers[1].store.broken = True
    store.put("c", kv_of(1))
    assert [store.tier_of(key) for key in "abc"] == ["disk", None, "host"] and store.get("a") is not None


def test_a_budget_smaller_than_a_block_is_one_clear_error_and_nothing_is_written():
    store = two(16, 32)
    refused(r"a block of 48 bytes is larger than every budget \(host 16, disk 32 bytes\)", store.put, "a", kv_of(3))
    store.put("b", kv_of(2))
    assert store.tier_of("a") is None and store.tier_of("b") == "disk"


def test_a_folder_that_holds_more_than_its_budget_is_refused_and_left_alone():
    shelf = Shelf()
    shelf.put("a", kv_of(2))
    refused("disk holds 32 bytes of blocks already", StoreTier, shelf, 16)
    refused("removes no blocks", StoreTier, MemoryStore(), 16)
    assert list(shelf) == ["a"]


@pytest.mark.parametrize("options", [{"write": "never"}, {"loaders": 0}])
def test_options_are_checked(options):
    refused(next(iter(options)), two, 16, **options)
    refused("each with its own name", lambda: TieredStore([HostTier(1), HostTier(1)]))


class Slow(Shelf):
    """Reads wait until they are let go."""

    def __init__(self):
        super().__init__()
        self.reads, self.begun, self.go = 0, Signal(), Signal()

    def get(self, key):
        self.reads += 1
        self.begun.set()
        assert self.go.wait(10)
        return super().get(key)


def test_a_block_on_its_way_is_read_once_by_all_who_want_it():
    shelf = Slow()
    shelf.held["a"], shelf.held["b"] = kv_of(1, 3), kv_of(2)
    store = TieredStore([HostTier(64), StoreTier(shelf, name="remote")])
    got = []
    readers = [Thread(target=lambda: got.append(store.find("a"))) for _ in range(2)]
    for reader in readers:
        reader.start()
    assert shelf.begun.wait(10)
    store.put("c", kv_of(1))
    assert store.get("c") is not None, "a hit in memory waits for no read"
    shelf.go.set()
    for reader in readers:
        reader.join(10)
    assert {len(found.kv) for found in got} == {1} and "remote" in {found.tier for found in got} and shelf.reads == 1
    assert store.tier_of("a") == "host"
    store.close()


def test_a_hit_and_a_new_block_in_memory_wait_for_no_write():
    class SlowWrites(Shelf):
        begun, go = Signal(), Signal()

        def put(self, key, kv):
            self.begun.set()
            assert self.go.wait(10)
            super().put(key, kv)

    shelf = SlowWrites()
    store = TieredStore([HostTier(48), StoreTier(shelf)])
    store.put("a", kv_of(2))
    writer = Thread(target=lambda: store.put("b", kv_of(2)))
    writer.start()
    assert shelf.begun.wait(10)
    store.chain.enter("c", kv_of(1))
    assert store.get("b") is not None and not shelf.held, "a is on its way down"
    shelf.go.set()
    writer.join(10)
    assert [store.tier_of(key) for key in "abc"] == ["disk", "host", "host"]
    store.close()


def test_a_read_that_fails_fails_those_who_asked_and_nobody_later():
    class Failing(Shelf):
        def get(self, key):
            raise TimeoutError("the remote is silent")

    store = TieredStore([HostTier(64), StoreTier(Failing(), name="remote")])
    with pytest.raises(TimeoutError):
        store.get("a")
    store.put("a", kv_of(1))
    assert store.get("a") is not None


def test_a_folder_is_a_tier_whose_files_come_and_go(tmp_path):
    model, blocks = model_of(), [block_of(4, seed) for seed in range(3)]
    kvs = [encode(model, block).lock() for block in blocks]
    keys = [key_of("m", torch.float32, block) for block in blocks]
    size = kvs[0].nbytes

    def opened():
        return StoreTier(FolderStore(tmp_path / "blocks", {"model": "m"}, new=True), 2 * size)

    store = TieredStore([HostTier(size), opened()])
    for key, kv in zip(keys, kvs, strict=True):
        store.put(key, kv)
    assert [store.tier_of(key) for key in keys] == ["disk", "disk", "host"]
    assert store.get(keys[1]) is not None, "it comes up, and the one above goes down, where the coldest makes room"
    assert [store.tier_of(key) for key in keys] == [None, "host", "disk"]
    assert store.miss_reason(keys[0]).reason == "evicted"
    assert len(list((tmp_path / "blocks").glob("*.safetensors"))) == 2
    again = TieredStore([HostTier(size), opened()])
    found = again.find(keys[2])
    assert found.tier == "disk" and torch.equal(found.kv.keys[1], kvs[2].keys[1])
    other = key_of("m", torch.bfloat16, blocks[2])
    assert again.get(other) is None and again.recent[-1].reason == "other dtype"


def test_a_remote_is_the_last_tier(tmp_path):
    model, blocks = model_of(), [block_of(4, seed) for seed in range(4)]
    kvs = [encode(model, block).lock() for block in blocks]
    keys = [key_of("m", torch.float32, block) for block in blocks]
    url, kind = f"file://{tmp_path}/remote", {"model": "m"}

    def opened():
        folder = FolderStore(tmp_path / "disk", kind, new=True)
        remote = RemoteStore(url, kind, new=True)
        size = kvs[0].nbytes
        return TieredStore([HostTier(size), StoreTier(folder, size), StoreTier(remote, 1 << 20, "remote")])

    store = opened()
    for key, kv in zip(keys, kvs, strict=True):
        store.put(key, kv)
    assert [store.tier_of(key) for key in keys] == ["remote", "remote", "disk", "host"]
    assert store.find(keys[0]).tier == "remote" and store.tier_of(keys[0]) == "host"
    later = opened()
    found = later.find(keys[1])
    assert found.tier == "remote" and torch.equal(found.kv.values[2], kvs[1].values[2])
    assert later.find(keys[1]).tier == "host"


def test_a_file_of_several_blocks_is_written_without_the_one_that_is_removed(tmp_path):
    folder = FolderStore(tmp_path / "blocks", {"model": "m"}, new=True)
    folder.write("many", {"a": kv_of(2, 1), "b": kv_of(3, 2)})
    assert folder.size_of("b") == 48 and folder.size_of("x") == 0
    folder.remove("a")
    folder.remove("a")
    assert folder.get("a") is None and folder.miss_reason("a").reason == "evicted" and len(folder.get("b")) == 3
    folder.remove("b")
    assert not list((tmp_path / "blocks").glob("*.safetensors")) and len(folder) == 0


def test_a_block_of_a_store_that_removes_none_is_not_dropped():
    class Kept:
        """A store without `remove`."""

        def __init__(self):
            self.held = {}

        def get(self, key):
            return self.held.get(key)

        def put(self, key, kv):
            self.held[key] = kv

    tier = StoreTier(Kept(), name="kept")
    kv = kv_of(4)
    tier.keep("a", kv)
    refused("Kept removes no blocks: a stays", tier.drop, "a")
    assert tier.get("a") is kv


# --- Alternative Path serves the same tokens and preparation, or `moved`; one copy of a chunk; in order a prefix ca
CHUNKS = [Block((10 + i, 20 + i)) for i in range(6)]
SYSTEM = Block((1, 2))
BLOCK_KEYS = chain_keys("weights", torch.float32, [SYSTEM])
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
        keys = [BLOCK_KEYS(chunk, chunks[:at]) for at, chunk in enumerate(chunks)]
        found = [key in self.kept for key in keys]
        self.kept |= set(keys)
        return found


def test_figure_10_a_chunk_is_found_behind_another_one():
    index = AlternativePath(BLOCK_KEYS)
    index.serve([B])
    first, second = index.serve([A, B])
    assert first.computed and not second.computed and second.moved
    b, a = index.serve([B, A])
    assert not b.computed and not b.moved
    assert not a.computed and a.moved and a.seen == 0 and a.tried == 2, "(system, b, a) fails, (system, a) is known"
    assert a.key == BLOCK_KEYS(A, []) and len(index) == 2


def test_the_longest_path_is_served_where_it_is_known():
    index = AlternativePath(BLOCK_KEYS, "in_place")
    index.serve([A, B])
    match = index.find([CHUNKS[2], A, B])[-1]
    assert match is not None and match.seen == 1 and match.moved, "b saw a, and not what now stands before a"
    assert index.find([A, B])[-1].moved is False


def test_what_saw_a_chunk_is_not_served_where_that_chunk_does_not_stand_before_it():
    index = AlternativePath(BLOCK_KEYS, "in_place")
    attacker, passage = A, B
    index.serve([attacker, passage])
    assert index.find([passage]) == [None] and index.find([CHUNKS[3], passage])[-1] is None
    (served,) = index.serve([passage])
    assert served.computed and served.seen == 0 and len(index) == 2, "the clean copy replaces the other one"


@given(PROMPTS, st.sampled_from(ENCODINGS))
def test_served_is_the_same_chunk_behind_what_the_match_says(prompts, encoding):
    index = AlternativePath(BLOCK_KEYS, encoding)
    for chunks in prompts:
        for at, (chunk, match) in enumerate(zip(chunks, index.serve(chunks), strict=True)):
            assert match.before == at and 0 <= match.seen <= at and match.moved == (match.seen < at)
            assert match.key == BLOCK_KEYS(chunk, chunks[at - match.seen : at]), "same tokens, same preparation"


@given(PROMPTS, st.sampled_from(ENCODINGS))
def test_there_is_one_copy_of_a_chunk_and_it_is_computed_at_most_twice(prompts, encoding):
    index, computed = AlternativePath(BLOCK_KEYS, encoding), []
    for chunks in prompts:
        matches = index.serve(chunks)
        computed += [chunk for chunk, match in zip(chunks, matches, strict=True) if match.computed]
        assert len(index) == len(set(index)) == len({chunk for prompt in prompts for chunk in prompt} & set(computed))
        assert all(match.key in index or encoding == "in_place" for match in matches)
    most = 1 if encoding == "after_system" else 2
    assert all(computed.count(chunk) <= most for chunk in computed)


@given(st.lists(st.integers(1, 6), max_size=8), st.sampled_from(ENCODINGS))
def test_where_the_order_never_changes_it_finds_what_a_prefix_cache_finds(lengths, encoding):
    index, plain = AlternativePath(BLOCK_KEYS, encoding), PrefixCache()
    for length in lengths:
        matches, found = index.serve(CHUNKS[:length]), plain.serve(CHUNKS[:length])
        assert [not match.computed for match in matches] == found
        if encoding == "in_place":
            assert not any(match.moved for match in matches) and set(index) == plain.kept


def test_looking_keeps_nothing_and_a_removed_chunk_is_not_found():
    index = AlternativePath(BLOCK_KEYS)
    assert index.find([A, B]) == [None, None] and len(index) == 0
    index.serve([A])
    index.remove(A)
    index.remove(B)
    assert index.find([A]) == [None] and BLOCK_KEYS(A, []) not in index


def test_an_unknown_encoding_is_refused():
    refused("encoding is 'alone': allowed are after_system, in_place", AlternativePath, BLOCK_KEYS, "alone")


def test_its_keys_are_those_under_which_prepared_blocks_are_stored():
    model, store = tiny({"model_type": "llama"}), MemoryStore()
    AfterSystem()(model, [Prompt((SYSTEM, A, B, Block((7,))))], store)
    index = AlternativePath(chain_keys(fingerprint(model), model.dtype, [SYSTEM]))
    assert all(match.key in store for match in index.serve([B, A]))


# --- Stores in front of other stores: what they show, record and hold back
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
