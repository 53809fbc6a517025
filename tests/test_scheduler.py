"""The scheduler: answers of every mode, and the order of what happens."""

from threading import Barrier, Thread

import pytest

from tests.random_models import Letters
from tests.scheduler_cases import MODEL, PROMPTS, finished, one_by_one, served, simulated
from workbench.core.errors import BadInput
from workbench.methods.modes.reuse import Reuse
from workbench.methods.prepare.after_system import AfterSystem
from workbench.methods.select.first_k import FirstK
from workbench.methods.serving import MODES, Scheduler
from workbench.methods.serving.contiguous import ContiguousEngine
from workbench.store import FolderStore, HostTier, MemoryStore, StoreTier, TieredStore
from workbench.store.events import busy, idle_share


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
    scheduler = Scheduler(engine, "request", batch=2, waiting=2)
    server = Thread(target=scheduler.serve)
    server.start()
    answers, barrier = {}, Barrier(3)

    def ask(which):
        barrier.wait(10)
        for i in range(which, len(PROMPTS), 3):
            answers[i] = scheduler.submit(PROMPTS[i], 5, timeout=30).result(30)

    threads = [Thread(target=ask, args=(which,)) for which in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    scheduler.close()
    server.join(30)
    assert not server.is_alive()
    assert [answers[i] for i in range(len(PROMPTS))] == one_by_one("block")
    with pytest.raises(BadInput, match="closed"):
        scheduler.submit(PROMPTS[0])


@pytest.mark.parametrize("mode", MODES)
def test_a_request_tells_its_load_also_where_it_was_computed_meanwhile(mode):
    scheduler, tickets, _ = simulated(mode, [3.0])
    scheduler.run()
    assert tickets[0].seconds["load"] >= 3.0
