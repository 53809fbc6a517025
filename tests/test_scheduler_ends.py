"""Requests that fail, are cancelled, are too late, find no room or are refused: the others go on."""

from concurrent.futures import CancelledError

import pytest

from tests.random_models import VOCABULARY, Letters
from tests.scheduler_cases import BLOCKS, MODEL, PROMPTS, simulated
from workbench.core.blocks import Block, Prompt
from workbench.core.errors import BadInput
from workbench.methods.serving import Busy, NoRoom, Scheduler
from workbench.methods.serving.contiguous import ContiguousEngine
from workbench.methods.serving.simulated import SimulatedClock, SimulatedEngine
from workbench.store import MemoryStore


@pytest.mark.parametrize("mode", ["request", "layer", "sync"])
def test_a_loader_that_fails_fails_its_request_only(mode):
    class Failing(SimulatedEngine):
        def load(self, ticket, arrived=None):
            if ticket.name == "1":
                raise OSError("the disk is gone")
            return {"bytes": 7}

    scheduler, tickets, engine = simulated(mode, [1.0, 1.0, 1.0])
    scheduler.engine = scheduler.queues.engine = scheduler.computation.engine = Failing(**vars(engine))
    scheduler.run()
    assert [ticket.state for ticket in tickets] == ["finished", "failed", "finished"]
    with pytest.raises(OSError, match="disk is gone"):
        tickets[1].result(0)
    assert sorted(scheduler.queues.engine.released) == ["0", "1", "2"]
    assert [event.detail for event in scheduler.events if event.what == "fail"] == ["the disk is gone"]


def test_a_prefill_that_fails_over_several_requests_is_made_for_each_alone():
    class Failing(SimulatedEngine):
        def prefill(self, tickets, waits):
            if any(ticket.name == "1" for ticket in tickets):
                raise RuntimeError("a damaged request")
            return super().prefill(tickets, waits)

    scheduler, tickets, engine = simulated("request", [1.0, 1.0, 1.0], loaders=3)
    scheduler.engine = scheduler.computation.engine = Failing(**vars(engine))
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


def test_a_deadline_ends_a_request_and_no_other():
    scheduler, tickets, _ = simulated("request", [50.0, 1.0])
    late = scheduler.submit(PROMPTS[0], 1, deadline=10.0, name="0")
    scheduler.run()
    assert late.state == "expired" and [ticket.state for ticket in tickets] == ["finished", "finished"]
    assert [event.at for event in scheduler.events if event.what == "expire"] == [pytest.approx(10.0)]
    with pytest.raises(BadInput, match="deadline is 0"):
        scheduler.submit(PROMPTS[0], deadline=0)


def test_a_queue_that_is_full_takes_no_more():
    scheduler, tickets, _ = simulated("request", [1.0, 1.0], waiting=2)
    with pytest.raises(Busy, match="2 requests are waiting"):
        scheduler.submit(PROMPTS[0], 1, block=False)
    assert [event.what for event in scheduler.events][-1] == "reject"
    scheduler.run()
    assert [ticket.state for ticket in tickets] == ["finished", "finished"]
    assert len(scheduler.run([])) == 0


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

    scheduler, tickets, engine = simulated("request", [1.0] * 5, loaders=5)
    scheduler.engine = scheduler.queues.engine = scheduler.computation.engine = small = Small(**vars(engine))
    small.held = set()
    scheduler.run()
    assert [ticket.state for ticket in tickets] == ["finished", "finished", "failed", "finished", "finished"]
    with pytest.raises(BadInput, match="request 2 finds no room: 2 requests at most"):
        tickets[2].result(0)
    assert not small.held


def test_requests_that_found_no_room_keep_their_order():
    class Full(SimulatedEngine):
        def load(self, ticket, arrived=None):
            if ticket.name in {"1", "2", "3"} and "0" not in self.released:
                raise NoRoom("the first one has all")
            return {}

    scheduler, _, engine = simulated("request", [1.0] * 6, loaders=6, loading=4, prefill=5.0)
    scheduler.engine = scheduler.queues.engine = scheduler.computation.engine = Full(**vars(engine))
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
    scheduler = Scheduler(engine, "layer", loaders=1)
    tickets = scheduler.run(PROMPTS[:2], 2)
    scheduler.close()
    assert [ticket.state for ticket in tickets] == ["finished", "finished"]
    first, second = (arrivals for name, arrivals in engine.tried if name == "1")
    assert first is not second, "what the first load failed with does not fail the second"


def test_what_cannot_be_computed_is_refused_when_it_is_submitted():
    engine = ContiguousEngine(MODEL, Letters(), MemoryStore())
    scheduler = Scheduler(engine)
    with pytest.raises(BadInput, match="vocabulary"):
        scheduler.submit(Prompt((Block((VOCABULARY + 1,)), BLOCKS[0])))
    with pytest.raises(BadInput, match="max_new_tokens 0"):
        scheduler.submit(PROMPTS[0], 0)
    scheduler.close()
    for options in ({"mode": "fast"}, {"batch": 0}, {"loading": 0}, {"waiting": 0}, {"loaders": 0}):
        with pytest.raises(BadInput, match=next(iter(options))):
            Scheduler(engine, **options)
