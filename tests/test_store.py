"""The store in memory: what makes two blocks the same, the budget, and that nobody can write to what it holds."""

from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.random_models import block_of, model_of, prompt_of
from tests.refusals import refused
from tests.tier_cases import kv_of
from workbench.core.plan import Plan
from workbench.engine.assembly import assemble
from workbench.engine.encoding import encode, encode_many
from workbench.engine.forward import prefill
from workbench.store import MemoryStore, fetch, fingerprint, key_of, keys

PROMPT = prompt_of(6, 4, 9, 3)


class LeastRecentlyUsed(RuleBasedStateMachine):
    """The store against a list of (key, size) in order of use."""

    def __init__(self):
        super().__init__()
        self.store, self.model = MemoryStore(160), OrderedDict()
        self.counted = {"hits": 0, "misses": 0, "evictions": 0, "rejected": 0}

    @rule(key=st.sampled_from("abcdef"), tokens=st.integers(1, 12))
    def put(self, key, tokens):
        self.store.put(key, kv_of(tokens))
        self.model.pop(key, None)
        if 16 * tokens > 160:
            self.counted["rejected"] += 1
            return
        self.model[key] = 16 * tokens
        while sum(self.model.values()) > 160:
            self.model.popitem(last=False)
            self.counted["evictions"] += 1

    @rule(key=st.sampled_from("abcdef"))
    def get(self, key):
        kv = self.store.get(key)
        assert (kv is not None) == (key in self.model)
        self.counted["hits" if kv is not None else "misses"] += 1
        if kv is not None:
            assert kv.nbytes == self.model[key] and kv.read_only
            self.model.move_to_end(key)

    @rule()
    def clear(self):
        self.store.clear()
        self.model.clear()

    @invariant()
    def agrees(self):
        stats = self.store.stats
        assert stats.bytes == self.store.bytes == sum(self.model.values()) <= 160
        assert stats.entries == len(self.store) == len(self.model) and all(key in self.store for key in self.model)
        assert {name: getattr(stats, name) for name in self.counted} == self.counted


TestLeastRecentlyUsed = LeastRecentlyUsed.TestCase
TestLeastRecentlyUsed.settings = settings(max_examples=40, stateful_step_count=20)


def test_what_is_put_is_copied_unless_it_is_read_only_already():
    store, kv = MemoryStore(), kv_of(3)
    store.put("a", kv)
    kv.keys[0].fill_(7)
    assert not store.get("a").keys[0].any() and not kv.read_only
    store.put("b", kv.lock())
    assert store.get("b") is kv


def test_nobody_writes_to_what_the_store_holds():
    model, store = model_of(), MemoryStore()
    first = fetch(model, PROMPT.context, store)
    before = [kv.clone() for kv in first]
    refused("read-only", prefill, model, PROMPT.tokens, Plan(torch.arange(6)), first[0])
    kv = assemble(model, PROMPT, first)
    prefill(model, PROMPT.tokens, Plan(torch.arange(len(PROMPT))), kv)
    for held, copy in zip(fetch(model, PROMPT.context, store), before, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(held.tensors(), copy.tensors(), strict=True))


def test_fetch_encodes_what_is_missing_in_one_pass_and_only_that(monkeypatch):
    model, store, calls = model_of(), MemoryStore(), []
    monkeypatch.setattr("workbench.store.fetching.encode_many", lambda *a: calls.append(len(a[1])) or encode_many(*a))
    fetch(model, PROMPT.context[:2], store)
    blocks = (*PROMPT.context, PROMPT.context[2])
    got = fetch(model, blocks, store)
    fetch(model, blocks, store)
    assert calls == [2, 1, 0]
    stats = store.stats
    assert (stats.misses, stats.hits, stats.entries) == (3, 7, 3) and stats.hit_rate == 0.7
    assert stats.bytes == sum(kv.nbytes for kv in got[:3])
    for kv, block in zip(got, blocks, strict=True):
        torch.testing.assert_close(kv.keys[2], encode(model, block).keys[2])


def test_a_store_that_can_keep_nothing_still_serves():
    model, store = model_of(), MemoryStore(1)
    assert [len(kv) for kv in fetch(model, PROMPT.context, store)] == [6, 4, 9]
    assert store.stats.rejected == 3 and store.stats.bytes == 0 and store.stats.hit_rate == 0


def test_a_block_prepared_behind_others_never_passes_for_the_block_alone():
    model, store = model_of(), MemoryStore()
    block, past = PROMPT.blocks[1], (PROMPT.blocks[0],)
    (alone,) = fetch(model, [block], store)
    (behind,) = fetch(model, [block], store, [past])
    assert store.stats.entries == 2 and (alone.start, behind.start) == (0, 6)
    assert not torch.allclose(alone.values[2], behind.values[2])
    refused("1 entries for 2 blocks", fetch, model, [block, block], store, [past])


TOKENS = st.lists(st.integers(0, 30), min_size=1, max_size=3)


@given(st.lists(TOKENS, min_size=1, max_size=3), st.lists(TOKENS, min_size=1, max_size=3))
def test_keys_are_equal_for_equal_chains_only(first, second):
    def key(chain):
        blocks = [block_of(1).__class__(tuple(tokens)) for tokens in chain]
        return key_of("model", torch.float32, blocks[-1], blocks[:-1])

    assert (key(first) == key(second)) == (first == second)


def test_keys_cover_model_dtype_and_format(monkeypatch):
    block = block_of(3)
    made = {key_of("a", torch.float32, block), key_of("b", torch.float32, block), key_of("a", torch.bfloat16, block)}
    monkeypatch.setattr(keys, "FORMAT_VERSION", 99)
    assert len(made | {key_of("a", torch.float32, block)}) == 4


def test_equal_models_have_equal_fingerprints_and_every_weight_and_setting_counts_but_no_name():
    model = model_of()
    before = fingerprint(model)
    assert before == fingerprint(model) == fingerprint(model_of())
    assert before != fingerprint(model_of(seed=1)) != fingerprint(model_of("qwen2"))
    for name, parameter in model.named_parameters():
        flat = parameter.data.view(-1)
        at, value = len(flat) // 2, flat[len(flat) // 2].item()
        with torch.no_grad():
            parameter.view(-1)[at] = value + 1e-3
        assert fingerprint(model) != before, f"{name} is not covered"
        with torch.no_grad():
            parameter.view(-1)[at] = value
        assert fingerprint(model) == before
    with torch.no_grad():
        model.lm_head.weight[[0, 1]] = model.lm_head.weight[[1, 0]]
    assert fingerprint(model) != before
    assert fingerprint(model_of(rms_norm_eps=1e-3)) != before
    renamed = model_of()
    renamed.config.name_or_path = "elsewhere"
    renamed.set_attn_implementation("eager")
    assert fingerprint(renamed) == before


def test_a_fingerprint_is_computed_again_where_weights_changed_or_moved_alone(monkeypatch):
    model, counted = model_of(), []
    digest = keys._digest
    monkeypatch.setattr(keys, "_digest", lambda *a: counted.append(1) or digest(*a))
    for _ in range(3):
        fingerprint(model)
    model.load_state_dict(model_of(seed=1).state_dict())
    assert fingerprint(model) == fingerprint(model_of(seed=1)) and len(counted) == 3
    model = model_of()
    counted.clear()
    fingerprint(model)
    model.model.rotary_emb.inv_freq = model.model.rotary_emb.inv_freq.clone()  # as dynamic scaling does
    model.model.rotary_emb.inv_freq.mul_(1)
    fingerprint(model)
    assert len(counted) == 1
    model.to(torch.float64)
    fingerprint(model)
    assert len(counted) == 2


def changes():
    """Ways to change a model that its fingerprint must notice, however often it was asked before."""

    def replaced(model):
        model.model.layers[1].mlp.up_proj.weight = torch.nn.Parameter(model.model.layers[1].mlp.up_proj.weight * 2)

    def in_place(model):
        with torch.no_grad():
            model.model.norm.weight.mul_(2)

    def by_an_optimiser(model):
        optimiser = torch.optim.SGD([model.lm_head.weight], lr=1.0)
        model.lm_head.weight.grad = torch.ones_like(model.lm_head.weight)
        optimiser.step()

    def swapped(model):
        layers = model.model.layers
        layers[0], layers[1] = layers[1], layers[0]

    def new_module(model):
        old = model.model.layers[0].mlp
        model.model.layers[0].mlp = type(old)(model.config)

    return {f.__name__: f for f in (replaced, in_place, by_an_optimiser, swapped, new_module)}


@pytest.mark.parametrize("change", changes().values(), ids=changes().keys())
def test_a_fingerprint_notices_every_way_to_change_a_model(change):
    model = model_of()
    before = fingerprint(model), fingerprint(model)
    change(model)
    assert before[0] == before[1] != fingerprint(model)


def test_threads_share_a_store_without_losing_count():
    store = MemoryStore(160)

    def request(offset):
        for i in range(200):
            key = str((i * 7 + offset) % 13)
            if store.get(key) is None:
                store.put(key, kv_of(1 + i % 4))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(request, range(4)))
    stats = store.stats
    assert stats.hits + stats.misses == 800 and stats.bytes <= 160
    assert stats.bytes == sum(store.get(str(n)).nbytes for n in range(13) if str(n) in store)
