"""The scheduler: answers of every mode, and the order of what happens."""

from concurrent.futures import CancelledError
from threading import Barrier, Thread

import pytest
import torch

from tests.random_models import VOCABULARY, Letters, block_of
from tests.refusals import refused
from tests.scheduler_cases import BLOCKS, MODEL, PROMPTS, finished, one_by_one, paged, ran, served, simulated
from workbench.core.blocks import Block, Prompt
from workbench.engine.encoding import encode_many
from workbench.engine.pages.page_tables import common_pages
from workbench.methods.modes.reuse import Reuse
from workbench.methods.prepare.after_system import AfterSystem
from workbench.methods.select.first_k import FirstK
from workbench.methods.select.kv_deviation import KvDeviation
from workbench.methods.select.query_guided import QueryGuided
from workbench.methods.serving import MODES, NoRoom, Scheduler
from workbench.methods.serving.contiguous import ContiguousEngine
from workbench.methods.serving.paged import PagedEngine
from workbench.methods.serving.simulated import SimulatedClock, SimulatedEngine, SimulatedLoaders
from workbench.methods.serving.tickets import Ticket
from workbench.methods.sparse.random import RandomTiles
from workbench.store import FolderStore, HostTier, MemoryStore, StoreTier, TieredStore, fingerprint, key_of
from workbench.store.events import Events, busy, idle_share


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "method",
    ["block", "full", Reuse(prepare=AfterSystem(), select=FirstK(), ratio=0.5), Reuse(positions="naive")],
    ids=str,
)
def test_answers_are_those_of_generate_one_by_one(mode, method):
    store, expected = MemoryStore(), one_by_one(method)
    for _ in range(2):  # cold, warm
        tickets, _ = served(mode, method, store)
        assert [ticket.result(0) for ticket in tickets] == expected
    if method != "full":
        assert all(block.status == "reused" for ticket in tickets for block in ticket.generation.receipt.blocks)


def test_draws_and_stop_strings_are_those_of_generate():
    options = {"temperature": 1.5, "top_p": 0.9, "seed": 3}
    stop = one_by_one("block", 8, **options)[0].text[3]
    tickets, _ = served("request", count=8, stop=stop, **options)
    assert [ticket.result(0) for ticket in tickets] == one_by_one("block", 8, stop=stop, **options)


@pytest.mark.parametrize("mode", MODES)
def test_blocks_come_from_a_folder_through_tiers(mode, tmp_path):
    folder = FolderStore(tmp_path / "blocks", new=True)
    served(mode, store=TieredStore([HostTier(1 << 20), StoreTier(folder)], write="through"))
    tickets, scheduler = served(mode, store=TieredStore([HostTier(1 << 20), StoreTier(folder)]))
    assert [ticket.result(0) for ticket in tickets] == one_by_one("block")
    receipts = [ticket.generation.receipt for ticket in tickets]
    assert {tier for receipt in receipts for tier in receipt.bytes} == {"disk", "host"}
    assert {"wait", "load", "prefill", "decode"} <= set(receipts[0].seconds)
    loads = [event for event in scheduler.events if event.what == "load"]
    lanes = {event.lane for event in loads}
    assert len(loads) == len(PROMPTS) and sum(event.bytes for event in loads) > 0
    assert lanes == {"engine"} if mode == "sync" else lanes <= {"loader 0", "loader 1"}


def test_loads_and_prefills_overlap_where_they_are_asynchronous():
    """Figure 11: while the blocks of the second request are loaded, the first one is computed."""
    sync, together = finished("sync", [3.0, 3.0]), finished("request", [3.0, 3.0], loaders=1)
    assert sync[0] == [10.0, 10.0], "both loads, then both prefills"
    assert together[0] == [5.0, 8.0], "the second load runs during the first prefill"
    assert busy(sync[1]) == busy(together[1]) == 4.0
    assert idle_share(sync[1]) == pytest.approx(0.6) and idle_share(together[1]) == pytest.approx(0.5)


def test_layers_that_arrive_one_by_one_are_computed_as_they_come():
    (request,), _ = finished("request", [4.0])
    (layer,), events = finished("layer", [4.0])
    assert request == 6.0 and layer == 4.5, "the last layer is computed when it has arrived"
    assert [event.what for event in events if event.what in ("ready", "first_token")] == ["first_token"]
    assert busy(events) == 2.0, "the engine is idle while it waits for a layer"


def test_requests_end_in_the_order_in_which_their_blocks_arrive():
    ended, events = finished("request", [9.0, 1.0, 4.0], loaders=3)
    assert sorted(range(3), key=ended.__getitem__) == [1, 2, 0]
    order = [event.request for event in events if event.what == "finish"]
    assert order == ["1", "2", "0"]


@pytest.mark.parametrize("mode", MODES)
def test_requests_that_read_no_blocks_are_computed_in_the_order_of_their_arrival(mode):
    clock = SimulatedClock()
    events = Events(clock)
    slower_first = SimulatedLoaders(len(PROMPTS), lambda ticket: float(len(PROMPTS) - ticket.number), clock, events)
    engine = ContiguousEngine(MODEL, Letters(), MemoryStore(), "full")
    ran(engine, mode, 2, loaders=slower_first, events=events, batch=1)
    first = [event.request for event in events if event.what == "first_token"]
    assert first == [f"{number}" for number in range(len(PROMPTS))]


def test_a_request_joins_those_that_are_decoded():
    _, events = finished("request", [1.0, 4.0], count=6)
    runs = [event.detail for event in events if event.what == "run"]
    assert runs.index("prefill: 1") > runs.index("decode: 0") and any(run.startswith("decode: 0, 1") for run in runs)


def test_no_more_requests_are_loaded_than_may_be():
    scheduler, _, _ = simulated("request", [1.0] * 9, loading=2, loaders=9)
    most = 0
    while scheduler._left():
        scheduler.step()
        most = max(most, len(scheduler.queues.loading) + len(scheduler.queues.ready))
    assert most == 2


def test_threads_submit_and_wait_while_another_serves():
    engine = ContiguousEngine(MODEL, Letters(), MemoryStore(), "block")
    scheduler = Scheduler(engine, "request", batch=2)
    server = Thread(target=scheduler.serve)
    server.start()
    answers, barrier = {}, Barrier(3)

    def ask(which):
        barrier.wait(10)
        for i in range(which, len(PROMPTS), 3):
            answers[i] = scheduler.submit(PROMPTS[i], 5).result(30)

    threads = [Thread(target=ask, args=(which,)) for which in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    scheduler.close()
    server.join(30)
    assert not server.is_alive()
    assert [answers[i] for i in range(len(PROMPTS))] == one_by_one("block")
    refused("closed", scheduler.submit, PROMPTS[0])


@pytest.mark.parametrize("mode", MODES)
def test_a_request_tells_its_load_also_where_it_was_computed_meanwhile(mode):
    scheduler, tickets, _ = simulated(mode, [3.0])
    scheduler.run()
    assert tickets[0].seconds["load"] >= 3.0


# --- Requests that fail, are cancelled, find no room or are refused: the others go on
@pytest.mark.parametrize("mode", ["request", "layer", "sync"])
def test_a_loader_that_fails_fails_its_request_only(mode):
    class Failing(SimulatedEngine):
        def load(self, ticket, arrived=None):
            if ticket.name == "1":
                raise OSError("the disk is gone")
            return {"bytes": 7}

    scheduler, tickets, engine = simulated(mode, [1.0, 1.0, 1.0], kind=Failing)
    scheduler.run()
    assert [ticket.state for ticket in tickets] == ["finished", "failed", "finished"]
    with pytest.raises(OSError, match="disk is gone"):
        tickets[1].result(0)
    assert sorted(engine.released) == ["0", "1", "2"]
    assert [event.detail for event in scheduler.events if event.what == "fail"] == ["the disk is gone"]


def test_a_prefill_that_fails_over_several_requests_is_made_for_each_alone():
    class Failing(SimulatedEngine):
        def prefill(self, tickets, waits):
            if any(ticket.name == "1" for ticket in tickets):
                raise RuntimeError("a damaged request")
            return super().prefill(tickets, waits)

    scheduler, tickets, _ = simulated("request", [1.0, 1.0, 1.0], loaders=3, kind=Failing)
    scheduler.run()
    assert [ticket.state for ticket in tickets] == ["finished", "failed", "finished"]


@pytest.mark.parametrize("steps, count", [(0, 1), (1, 1), (3, 99)], ids=["waiting", "loading", "running"])
def test_a_request_is_cancelled_wherever_it_is(steps, count):
    scheduler, tickets, engine = simulated("request", [1.0, 1.0], count=count, loaders=2)
    for _ in range(steps):
        scheduler.step()
    tickets[0].cancel()
    if count > 1:
        scheduler.step()
        tickets[1].cancel()
    scheduler.run()
    assert tickets[0].state == "cancelled" and tickets[1].state == ("finished" if count == 1 else "cancelled")
    with pytest.raises(CancelledError, match="request 0 was cancelled"):
        tickets[0].result(0)
    assert engine.released.count("0") == 1


def test_a_request_without_room_waits_until_another_has_ended():
    class Small(SimulatedEngine):
        def load(self, ticket, arrived=None):
            if ticket.name == "2" or len(self.held) > 1:
                raise NoRoom("2 requests at most")
            self.held.add(ticket.name)
            return {}

        def release(self, ticket):
            super().release(ticket)
            self.held.discard(ticket.name)

    scheduler, tickets, small = simulated("request", [1.0] * 5, loaders=5, kind=Small)
    small.held = set()
    scheduler.run()
    assert [ticket.state for ticket in tickets] == ["finished", "finished", "failed", "finished", "finished"]
    refused("request 2 finds no room: 2 requests at most", tickets[2].result, 0)
    assert not small.held


def test_requests_that_found_no_room_keep_their_order():
    class Full(SimulatedEngine):
        def load(self, ticket, arrived=None):
            if ticket.name in {"1", "2", "3"} and "0" not in self.released:
                raise NoRoom("the first one has all")
            return {}

    scheduler, _, _ = simulated("request", [1.0] * 6, loaders=6, loading=4, prefill=5.0, kind=Full)
    scheduler.run()
    began = {event.request: event.at for event in scheduler.events if event.what == "prefill"}
    assert [began[name] for name in "123"] == sorted(began[name] for name in "123")
    waited = [event.request for event in scheduler.events if event.what == "wait" and event.detail == "to load"]
    assert waited[4:7] == ["1", "2", "3"]


def test_a_request_that_found_no_room_is_computed_by_layers_later():
    class Once(SimulatedEngine):
        def load(self, ticket, arrived=None):
            self.tried.append((ticket.name, ticket.arrivals))
            if [name for name, _ in self.tried].count("1") == 1 and ticket.name == "1":
                raise NoRoom("not yet")
            for layer in range(self.layers):
                arrived(layer)
            return {}

    engine = Once(SimulatedClock(), lambda ticket: 1.0, layers=3)
    engine.tried = []
    tickets, _ = ran(engine, "layer", 2, PROMPTS[:2], loaders=1)
    assert [ticket.state for ticket in tickets] == ["finished", "finished"]
    first, second = (arrivals for name, arrivals in engine.tried if name == "1")
    assert first is not second, "what the first load failed with does not fail the second"


def test_what_cannot_be_computed_is_refused_when_it_is_submitted():
    engine = ContiguousEngine(MODEL, Letters(), MemoryStore())
    scheduler = Scheduler(engine)
    refused("vocabulary", lambda: scheduler.submit(Prompt((Block((VOCABULARY + 1,)), BLOCKS[0]))))
    refused("max_new_tokens 0", scheduler.submit, PROMPTS[0], 0)
    scheduler.close()
    for options in ({"mode": "fast"}, {"batch": 0}, {"loading": 0}, {"loaders": 0}):
        refused(next(iter(options)), Scheduler, engine, **options)


# --- Requests over the shared pages of a pool: answers, room, and what is done while a device computes
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
        tickets, _ = ran(engine, mode, 7, batch=3, events=Events())
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


@pytest.mark.parametrize("mode", ["sync", "request"])
@pytest.mark.parametrize(("tokens", "sizes"), [(50, [4]), (4000, [2, 2]), (5000, [1, 1, 1, 1]), (90_000, [1, 1, 1, 1])])
def test_prefills_that_fill_a_step_alone_do_not_wait_for_one_another(mode, tokens, sizes):
    class Long(SimulatedEngine):
        def rows(self, ticket):
            return tokens

    scheduler, tickets, _ = simulated(mode, [0.0] * 4, batch=4, kind=Long)
    scheduler.run()
    assert [len(group) for group in prefills(scheduler)] == sizes
    assert [ticket.first for ticket in tickets] == sorted(ticket.first for ticket in tickets)
    assert len({ticket.first for ticket in tickets}) == len(sizes)


def test_requests_read_blocks_in_the_order_in_which_they_came_into_pages():
    """So those of one batch read what they share at about the same time, and a common beginning stays one."""
    engine, tables = paged(90), []
    for number, (order, read) in enumerate([((1, 0, 2), (1, 0, 2)), ((1, 0, 3), (1, 0, 3)), ((3, 2, 0), (0, 2, 3))]):
        ticket = Ticket(f"{number}", Prompt((*(BLOCKS[i] for i in order), BLOCKS[1])), 2)
        engine.load(ticket)
        engine.prefill([ticket], [None])
        pages = {i: engine.pages.cached(key).pages.tolist() for i, key in zip(order, ticket.held.keys, strict=True)}
        tables.append(ticket.held.paged.table)
        expected = [page for i in read for page in pages[i]]
        assert tables[-1].numbers.tolist()[: len(expected)] == expected
    assert common_pages(tables[:2]) == 2


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

    def _work_until(self, event):
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
    tickets, scheduler = ran(engine, mode, 5, batch=2, loading=2)
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
    for _ in range(1 if mode == "sync" else 5):  # threads decide whether something is due while one is computed
        tickets, _ = ran(engine, mode, 4, PROMPTS * 2, batch=2)
        assert [ticket.result(0).tokens for ticket in tickets] == [one.tokens for one in expected] * 2
        if engine.did:
            break
    assert bool(engine.did) == (mode != "sync"), "synchronous: the paper's baseline does nothing meanwhile"


@pytest.mark.parametrize("options", [{"temperature": 0.9, "top_p": 0.8, "seed": 4}, {"stop": "M"}], ids=str)
def test_draws_and_stop_strings_over_shared_pages_are_those_of_generate(options):
    expected = one_by_one("block", 12, **options)
    tickets, _ = ran(paged(40, quantum=3, **options), "request", 12, batch=3, events=Events())
    assert [ticket.result(0).tokens for ticket in tickets] == [one.tokens for one in expected]
    assert [ticket.result(0).text for ticket in tickets] == [one.text for one in expected]


@pytest.mark.parametrize("mode", MODES)
def test_pages_that_are_too_few_are_used_by_one_request_after_the_other(mode):
    expected = one_by_one("block", 4)
    engine = paged(7)
    tickets, scheduler = ran(engine, mode, 4, PROMPTS * 2, batch=4)
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
