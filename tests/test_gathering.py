"""A free engine waits a little for requests whose loads are about to end, so that one step computes them together."""

import pytest

from tests.random_models import block_of
from workbench.core.blocks import Prompt
from workbench.methods.serving import Scheduler
from workbench.methods.serving.computation import BatchingWindow
from workbench.methods.serving.simulated import SimulatedClock, SimulatedEngine, SimulatedLoaders
from workbench.store.events import Events, idle_share

PROMPT = Prompt((block_of(2), block_of(3, 9)))
STEP, EACH = 35e-3, 14e-3  # seconds of a step, and of each request in it


class Contended(SimulatedEngine):
    """An engine that shares its processor with the loaders: what they do while it computes takes `slower` times."""

    loaders: SimulatedLoaders
    slower = 1.0

    def prefill(self, tickets, waits):
        at = self.clock.seconds
        ended = super().prefill(tickets, waits)
        late = (self.clock.seconds - at) * (1 - 1 / self.slower)
        self.loaders.delay(at, late)
        return ended


class Delayed(SimulatedLoaders):
    def delay(self, since, late):
        """Let all loads that are under way end later."""
        self._due = [(due + late if due > since else due, *rest) for due, *rest in self._due]
        self._free = [free + late if free > since else free for free in self._free]


def served(load, gather, slower=1.0, count=60, step=STEP, mode="request", **options):
    """Serve requests at once, one of which is loaded every `load` seconds by four loaders; return seconds and events.

    Loads take by turns a little longer and shorter, so that they do not end together.
    """
    clock = SimulatedClock()
    events = Events(clock)
    loaders = Delayed(4, lambda ticket: 4 * load * (0.75 + 0.125 * (ticket.number * 7 % 5)), clock, events)
    engine = Contended(clock, lambda ticket: EACH, step=step)
    engine.loaders, engine.slower = loaders, slower
    scheduler = Scheduler(engine, mode, loaders, events=events, gather=gather, **options)
    tickets = scheduler.run([PROMPT] * count, 1)
    assert all(ticket.state == "finished" for ticket in tickets)
    first = sum(ticket.first - ticket.arrived for ticket in tickets) / count
    return max(ticket.ended for ticket in tickets), first, list(events)


@pytest.mark.parametrize("load", [12e-3, 16e-3, 20e-3, 30e-3])
def test_where_steps_slow_the_loads_gathering_answers_more_and_sooner(load):
    together, alone = served(load, True, slower=2.5), served(load, False, slower=2.5)
    assert together[0] < 0.97 * alone[0], "seconds for all"
    assert together[1] < 0.97 * alone[1], "mean time to the first token"


@pytest.mark.parametrize("load", [5e-3, 20e-3, 40e-3, 0.2])
def test_where_loads_and_steps_do_not_touch_each_other_gathering_costs_little(load):
    together, alone = served(load, True), served(load, False)
    assert together[0] < 1.06 * alone[0] and together[1] < 1.06 * alone[1]


def test_a_step_without_a_fixed_cost_is_never_waited_for():
    together, alone = served(20e-3, True, step=0.0), served(20e-3, False, step=0.0)
    assert together[:2] == pytest.approx(alone[:2])


def test_the_engine_stands_still_no_longer_than_a_step_would_cost():
    *_, events = served(0.1, True)
    runs = sorted((event.at, event.end) for event in events if event.what == "run")
    ready = sorted(event.at for event in events if event.what == "ready")
    for begin, _ in runs:
        since = [at for at in ready if at <= begin]
        assert begin - since[-1] <= STEP + 1e-9, "nobody came for longer than a step's fixed cost"
    assert idle_share(events) < 1


def test_nobody_gathers_where_the_engine_loads_itself():
    assert served(20e-3, True, mode="sync")[:2] == pytest.approx(served(20e-3, False, mode="sync")[:2])


def test_the_fixed_cost_is_the_line_through_the_fewest_and_the_most():
    gathering = BatchingWindow()
    assert gathering.fixed_seconds == 0 and gathering.start_time(1.0, 1, 3) == 1.0
    gathering.note(1, 9.0)  # the first of a shape, which is compiled
    gathering.note(1, 0.05)
    assert gathering.fixed_seconds == 0
    gathering.note(8, 0.12)
    assert gathering.fixed_seconds == pytest.approx(0.04)
    assert gathering.start_time(1.0, 1, 3) == pytest.approx(1.03)


def test_a_slow_first_round_makes_nobody_wait_for_long():
    gathering = BatchingWindow()
    gathering.note(1, 9.0)
    gathering.note(4, 0.1)
    assert gathering.fixed_seconds <= 0.1
