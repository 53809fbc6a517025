"""Requests served over tiers of blocks on a simulated clock: the real scheduler and store, times of a model.

    replayed = replay(requests_of(zipf=1.0, count=200, pool=300), Machine(), mode="request")
    replayed.events, summary(replayed)

Scheduler, look-ups, moves between tiers and evictions are those of `methods.serving` and `store.tiering.tiered_store`;
nothing is computed. Blocks have the bytes of the Llama-3.1-8B shape, and a tier is a budget and a rate at which it is
read. Times of passes are those of `ttft_model`, measured on a GPU.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache as memo
from functools import partial
from typing import Any

import numpy as np

from workbench.core.blocks import Block, Prompt
from workbench.experiments.latency.ttft_model import TtftModel, fitted
from workbench.experiments.simulation.simulated_machine import LAYERS, SYSTEM, Machine, StoreEngine, block_key, kv_of
from workbench.experiments.simulation.workload import Workload
from workbench.methods.serving import Scheduler, Ticket
from workbench.methods.serving.scheduler import Mode
from workbench.methods.serving.simulated import SimulatedClock, SimulatedEngine, SimulatedLoaders
from workbench.metrics.answers import Records
from workbench.store.events import Event, Events, idle_share

MEASURES = ("ttft_ms", "ttft_p95", "per_second", "idle", "hit_rate")


@dataclass(frozen=True)
class Replayed:
    """What happened in a replay.

    events    on the simulated clock
    tickets   requests in the order of their arrival
    tiers     what the tiers hold at the end
    held      bytes of every tier after every step of the scheduler, [(seconds, {tier: bytes})]
    """

    mode: Mode
    machine: Machine
    events: Sequence[Event]
    tickets: Sequence[Ticket]
    tiers: Sequence[Mapping[str, Any]]
    held: Sequence[tuple[float, Mapping[str, int]]]


def replay(
    requests: Sequence[Sequence[int]],
    machine: Machine,
    mode: Mode = "request",
    prepared: Sequence[int] = (),
    seed: int = 0,
    model: TtftModel | None = None,
) -> Replayed:
    """Serve requests that arrive at random moments (Poisson). Passages `prepared` are put into the tiers beforehand."""
    model = fitted() if model is None else model
    clock = SimulatedClock()
    events = Events(clock)
    store = machine.store(events)
    for passage in (*prepared, -1):
        store.put(block_key(passage), kv_of(machine.passage if passage >= 0 else len(SYSTEM)))
    engine = StoreEngine(store, machine)
    prefill = partial(_prefill_seconds, machine=machine, model=model)
    simulated = SimulatedEngine(clock, prefill, model.start / 1e3, LAYERS, engine)
    arrivals = deque(np.random.default_rng(seed).exponential(1 / machine.per_second, len(requests)).cumsum().tolist())
    loaders = ArrivingLoaders(2, engine.seconds_of, clock, events, LAYERS)
    loaders.arrivals = arrivals
    scheduler = Scheduler(simulated, mode, loaders, machine.batch, events=events)
    tickets: list[Ticket] = []
    held = [(clock(), {tier.name: tier.bytes for tier in store.tiers})]
    while arrivals or any(not ticket.done.is_set() for ticket in tickets):
        if all(ticket.done.is_set() for ticket in tickets):
            clock.until(arrivals[0])
        while arrivals and arrivals[0] <= clock():
            arrivals.popleft()
            number = len(tickets)
            tickets.append(scheduler.submit(_prompt(requests[number], machine), machine.answer, name=str(number)))
        scheduler.step()
        held.append((clock(), {tier.name: tier.bytes for tier in store.tiers}))
    scheduler.close()
    return Replayed(mode, machine, list(events), tickets, store.by_tier(), held)


class ArrivingLoaders(SimulatedLoaders):
    """Loaders that let no time pass beyond the next arrival."""

    arrivals: deque[float]

    def wait(self, until: float | None) -> None:
        """Let time pass until something is due, or a request arrives."""
        moments = [moment for moment in (until, self.arrivals[0] if self.arrivals else None) if moment is not None]
        super().wait(min(moments) if moments else None)


def _prefill_seconds(ticket: Ticket, machine: Machine, model: TtftModel) -> float:
    """Return the seconds until the first token of a request: what was missed is encoded first."""
    tokens, missing = machine.passage * len(ticket.prompt.context[1:]), machine.passage * len(ticket.held)
    if not machine.reuse:
        return float(model.prefix(0, tokens, machine.question)) / 1e3
    return float(model.blocks(tokens - missing, missing, machine.question, machine.ratio, machine.passage)) / 1e3


@memo
def _passage(number: int, tokens: int) -> Block:
    return Block((number, *range(10, 9 + tokens)), f"passage {number}")


def _prompt(passages: Sequence[int], machine: Machine) -> Prompt:
    question = Block(tuple(range(10, 10 + machine.question)), "question")
    return Prompt((SYSTEM, *(_passage(number, machine.passage) for number in passages), question))


def requests_of(zipf: float, count: int, pool: int, passages: int = 10, seed: int = 0) -> list[list[int]]:
    """Draw requests of `passages` passages from a pool, by relevance."""
    return Workload(count, (passages, passages), pool, 0, (1.0, 0.0), zipf).requests(seed)


def summary(replayed: Replayed) -> dict[str, Any]:
    """Return {mode, requests, seconds, per_second, ttft_ms, ttft_p95, idle, hits, misses, hit_rate, bytes by tier}."""
    firsts = [(ticket.first or 0.0) - ticket.arrived for ticket in replayed.tickets]
    begin = min(ticket.arrived for ticket in replayed.tickets)
    seconds = max(ticket.ended or 0.0 for ticket in replayed.tickets) - begin
    hits = sum(event.what == "hit" for event in replayed.events)
    misses = sum(event.what == "miss" for event in replayed.events)
    read = {f"read_{row['tier']}": row["read"] for row in replayed.tiers}
    return {
        "mode": replayed.mode,
        "requests": len(firsts),
        "seconds": seconds,
        "per_second": len(firsts) / seconds,
        "ttft_ms": 1e3 * float(np.mean(firsts)),
        "ttft_p95": 1e3 * float(np.quantile(firsts, 0.95)),
        "idle": idle_share(replayed.events),
        "hits": hits,
        "misses": misses,
        "hit_rate": hits / max(1, hits + misses),
        **read,
    }


def counts(replayed: Replayed) -> Records:
    """Return the rows of `results.Count` of a replay, at its rate of requests."""
    found = summary(replayed)
    return [{"measure": name, "at": replayed.machine.per_second, "value": found[name]} for name in MEASURES]
