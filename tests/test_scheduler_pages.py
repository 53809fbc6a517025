"""Requests over the shared pages of a pool: answers, room, and what is done while a device computes."""

import pytest
import torch

from tests.random_models import block_of
from tests.refusals import refused
from tests.scheduler_cases import BLOCKS, MODEL, PROMPTS, one_by_one, paged, simulated
from workbench.core.blocks import Prompt
from workbench.engine.encoding import encode_many
from workbench.methods.modes.reuse import Reuse
from workbench.methods.prepare.after_system import AfterSystem
from workbench.methods.select.first_k import FirstK
from workbench.methods.select.kv_deviation import KvDeviation
from workbench.methods.select.query_guided import QueryGuided
from workbench.methods.serving import MODES, NoRoom, Scheduler
from workbench.methods.serving.paged import PagedEngine
from workbench.methods.sparse.random import RandomTiles
from workbench.store import FolderStore, HostTier, StoreTier, TieredStore, fingerprint, key_of
from workbench.store.events import Events


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "method",
    [
        Reuse(),
        Reuse(prepare=AfterSystem()),
        Reuse(select=QueryGuided(), ratio=0.5),
        Reuse(positions="naive"),
        Reuse(select=KvDeviation(), ratio=0.4),
        Reuse(select=FirstK(k=3), ratio=None),
        Reuse(select=QueryGuided(softmax="prompt"), ratio=None),
    ],
    ids=["independent", "after_system", "query_guided", "naive", "kv_deviation", "first_k", "over the prompt"],
)
def test_answers_over_shared_pages_are_those_of_generate(mode, method):
    expected, behind = one_by_one(method, 7), TieredStore([HostTier(1 << 20)])
    for _ in range(2):
        engine = paged(40, method=method, store=behind, quantum=3)
        scheduler = Scheduler(engine, mode, batch=3, events=Events())
        tickets = scheduler.run(PROMPTS, 7)
        scheduler.close()
        assert [ticket.result(0).tokens for ticket in tickets] == [one.tokens for one in expected]
        assert [ticket.result(0).passes for ticket in tickets] == [one.passes for one in expected]
        assert engine.pages._promised == 0 and not engine.pages._pins
        assert engine.pool.free + sum(len(engine.pages.cached(key).pages) for key in engine.pages) == 39


def prefills(scheduler):
    """The requests of every prefill, in order."""
    runs = [event.detail for event in scheduler.events if event.what == "run" and event.detail.startswith("prefill")]
    return [words.removeprefix("prefill: ").split(", ") for words in runs]


def test_while_requests_are_computed_as_many_others_are_loaded():
    """So that batches are as large as those of an engine that loads by itself."""
    sizes = {}
    for mode in ("sync", "request"):
        scheduler, _, _ = simulated(mode, [1.0] * 20, prefill=0.5, loaders=2, batch=4, loading=4)
        scheduler.run()
        sizes[mode] = [len(group) for group in prefills(scheduler)]
    assert sizes["sync"] == [4] * 5 and max(sizes["request"]) <= 4
    slow, _, _ = simulated("request", [0.5] * 20, prefill=2.0, loaders=4, batch=4, loading=4)
    slow.run()
    assert [len(group) for group in prefills(slow)] == [4] * 5


class Device(PagedEngine):
    """An engine whose steps take a while on a device; the host asks three times before one has ended."""

    def __post_init__(self):
        super().__post_init__()
        self.overlaps, self.left, self.did = True, 0, []

    def query(self):
        self.left -= 1
        return self.left < 0

    def _used(self, tickets):
        self.left = 3
        return self

    def _beside(self, event):
        while not event.query() and (did := self.meanwhile()):
            self.did.append(did)

    def load(self, ticket, arrived=None):
        assert not all(key in self.pages for key in self._loads.keys(ticket)), "loaders are for what is not there"
        return super().load(ticket, arrived)


@pytest.mark.parametrize("mode", ["request", "layer"])
def test_requests_whose_blocks_lie_in_pages_pass_the_loaders_while_others_are_computed(mode):
    expected, engine = one_by_one("block", 5), paged(90, kind=Device)
    held = dict(
        zip([key_of(fingerprint(MODEL), MODEL.dtype, block) for block in BLOCKS], map(len, BLOCKS), strict=True)
    )
    engine.pages.encode(MODEL, dict(zip(engine.pages.reserve(held, 0), BLOCKS, strict=True)))
    engine.pages.release(held, 0)
    scheduler = Scheduler(engine, mode, batch=2, loading=2)
    tickets = scheduler.run(PROMPTS, 5)
    scheduler.close()
    assert [ticket.result(0).tokens for ticket in tickets] == [one.tokens for one in expected]
    assert {event.lane for event in scheduler.events if event.what == "load"} == {"scheduler"}
    assert [len(group) for group in prefills(scheduler)] == [2, 2, 2], "the next ones are ready when some have ended"
    assert engine.did, "some were taken, or got their receipts, while others were computed"
    assert all(ticket.generation.receipt.bytes.keys() == {"gpu"} for ticket in tickets)
    assert engine.pages._promised == 0 and not engine.pages._pins


@pytest.mark.parametrize("mode", MODES)
def test_what_is_done_while_a_device_computes_changes_no_answer(mode):
    expected, engine = one_by_one("block", 4), paged(9, kind=Device)
    engine.load = lambda ticket, arrived=None: PagedEngine.load(engine, ticket, arrived)
    scheduler = Scheduler(engine, mode, batch=2)
    tickets = scheduler.run(PROMPTS * 2, 4)
    scheduler.close()
    assert [ticket.result(0).tokens for ticket in tickets] == [one.tokens for one in expected] * 2
    assert bool(engine.did) == (mode != "sync"), "synchronous: the paper's baseline does nothing meanwhile"


@pytest.mark.parametrize("options", [{"temperature": 0.9, "top_p": 0.8, "seed": 4}, {"stop": "M"}], ids=str)
def test_draws_and_stop_strings_over_shared_pages_are_those_of_generate(options):
    expected = one_by_one("block", 12, **options)
    scheduler = Scheduler(paged(40, quantum=3, **options), "request", batch=3, events=Events())
    tickets = scheduler.run(PROMPTS, 12)
    scheduler.close()
    assert [ticket.result(0).tokens for ticket in tickets] == [one.tokens for one in expected]
    assert [ticket.result(0).text for ticket in tickets] == [one.text for one in expected]


@pytest.mark.parametrize("mode", MODES)
def test_pages_that_are_too_few_are_used_by_one_request_after_the_other(mode):
    expected = one_by_one("block", 4)
    engine = paged(7)
    scheduler = Scheduler(engine, mode, batch=4)
    tickets = scheduler.run(PROMPTS * 2, 4)
    scheduler.close()
    assert [ticket.result(0).tokens for ticket in tickets] == [one.tokens for one in expected] * 2
    assert engine.pages.evictions > 0 and engine.pages.bytes <= engine.pages.budget_bytes
    tiers = {tier for ticket in tickets for tier in ticket.generation.receipt.bytes}
    assert tiers == {"gpu", "host"}, "what had to make room went to the host, and came back"
    refused("the pool has 6", lambda: scheduler.submit(Prompt((block_of(60), block_of(9))), 4))


def test_a_block_is_copied_into_pages_and_out_again():
    engine, (kv,) = paged(), encode_many(MODEL, BLOCKS[2:3], [BLOCKS[:1]])
    assert engine.pages.reserve({"a": len(kv)}, 1) == ["a"] and engine.pages.get("a") is None
    engine.pages.fill({"a": kv})
    back = engine.pages.get("a")
    assert back.start == kv.start == 6 and all(
        torch.equal(a, b) for a, b in zip(back.tensors(), kv.tensors(), strict=True)
    )
    assert engine.pages.reserve({"a": len(kv)}, 0) == []
    engine.pages.release(["a"], 1)
    with pytest.raises(NoRoom):
        engine.pages.reserve({"b": 8 * 58}, 0)
    refused("the pool has 59", engine.pages.reserve, {"b": 8 * 60}, 0)


@pytest.mark.parametrize("below", [True, False], ids=["a copy on disk", "no other copy"])
def test_a_bit_that_flips_in_memory_is_found_on_the_way_to_pages(below, tmp_path):
    """Optional: `HostTier(checked=True)`."""
    expected, folder = one_by_one("block", 4), FolderStore(tmp_path / "a", new=True)
    host = HostTier(1 << 20, pinned=True, checked=True)
    store = TieredStore([host, StoreTier(folder)] if below else [host], write="through")
    keys = [key_of(fingerprint(MODEL), MODEL.dtype, block) for block in BLOCKS]
    for key, kv in zip(keys, encode_many(MODEL, BLOCKS), strict=True):
        store.put(key, kv)
    host.get(keys[0]).flat[5] ^= 4
    scheduler = Scheduler(paged(60, store=store), "request")
    tickets = scheduler.run(PROMPTS, 4)
    scheduler.close()
    assert [ticket.result(0).tokens for ticket in tickets] == [one.tokens for one in expected]
    told = [block for ticket in tickets for block in ticket.generation.receipt.blocks if block.label == BLOCKS[0].label]
    if below:
        assert "disk" in {block.tier for block in told} and all(block.status == "reused" for block in told)
    else:
        assert {block.reason for block in told if block.reason} == {"damaged: in host: its checksum is wrong"}
    refused("checked is of page-locked blocks", HostTier, 1 << 20, checked=True)


@pytest.mark.parametrize(
    "method",
    [
        Reuse(chunk=4),
        Reuse(sparse=RandomTiles()),
        Reuse(select=KvDeviation(fresh=True)),
    ],
)
def test_methods_that_pages_do_not_know_are_refused(method):
    refused("over pages", paged, method=method)
    refused("quantum is 0", paged, quantum=0)
