"""Tiers: hot blocks above, cold ones below, never over a budget, and what is read is what was written."""

from threading import Thread

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.random_models import block_of, model_of
from tests.refusals import refused
from tests.tier_cases import KEYS, Shelf, kv_of, two
from workbench.core.kv import KV
from workbench.engine.encoding import encode
from workbench.store import key_of
from workbench.store.events import Events
from workbench.store.tiering.quantized import quantize, size_in_bytes
from workbench.store.tiering.tier import Heat, HostTier, StoreTier
from workbench.store.tiering.tiered_store import TieredStore


class Model(RuleBasedStateMachine):
    """Three tiers against a dictionary of what was written."""

    @initialize(host=st.integers(3, 12), disk=st.integers(3, 20), last=st.one_of(st.none(), st.integers(3, 20)))
    def begin(self, host, disk, last):
        self.budgets = [16 * host, 16 * disk, last and 16 * last]
        names = ("host", "disk", "remote")
        shelves = [StoreTier(Shelf(), budget, name) for name, budget in zip(names[1:], self.budgets[1:], strict=True)]
        self.store, self.written = TieredStore([HostTier(self.budgets[0]), *shelves]), {}
        self.pins = []

    @rule(key=st.sampled_from(KEYS), tokens=st.integers(1, 22), fill=st.integers(1, 9))
    def put(self, key, tokens, fill):
        if key in self.pins:
            return
        if all(budget and 16 * tokens > budget for budget in self.budgets):
            refused("larger than every budget", self.store.put, key, kv_of(tokens, fill))
            return
        self.store.put(key, kv_of(tokens, fill))
        self.written[key] = tokens, float(fill)
        assert key in self.store or self.pins, "what was just written fits somewhere, unless pins take the room"

    @rule(key=st.sampled_from(KEYS))
    def get(self, key):
        there, kv = self.store.where(key), self.store.get(key)
        assert (kv is not None) == (there is not None)
        if kv is None:
            reason = self.store.recent[-1].reason
            assert reason == ("evicted" if key in self.written else "never seen")
            return
        assert kv.read_only and (len(kv), float(kv.keys[0][0, 0, 0])) == self.written[key]
        assert bool((kv.values[0] == -self.written[key][1]).all())

    @rule(key=st.sampled_from(KEYS))
    def pin(self, key):
        if self.store.pin(key):
            self.pins.append(key)

    @rule()
    def unpin(self):
        if self.pins:
            self.store.unpin(self.pins.pop())

    @invariant()
    def holds(self):
        if not hasattr(self, "store"):
            return
        for tier, budget in zip(self.store.tiers, self.budgets, strict=True):
            assert budget is None or tier.bytes <= budget
            assert tier.bytes == sum(16 * self.written[key][0] for key in tier)
        assert all(key in self.store.tiers[0] for key in self.pins), "pinned blocks stay in the first tier"
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
    assert [store.where(key) for key in "abcd"] == ["host", "disk", "host", "host"], "b was used least"
    found = store.find("b")
    assert found.tier == "disk" and store.where("b") == "host"
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

    threads = [Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
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
    assert rounded.needs(kv) < 0.4 * plain.needs(kv) == 0.4 * kv.nbytes
    store = TieredStore([rounded])
    store.put("a", kv)
    store.put("b", kv)
    assert len(rounded) == 2 and rounded.bytes == 2 * rounded.needs(kv)
    torch.testing.assert_close(store.get("a").keys[0], kv.keys[0], atol=0.05 * float(kv.keys[0].abs().max()), rtol=0)
    broken = kv.clone()
    broken.keys[0][0, 0, 0] = float("nan")
    refused("not finite", store.put, "c", broken)
    refused("storage is 'int4'", HostTier, storage="int4")
    refused("not page-locked", HostTier, storage="int8", pinned=True)
