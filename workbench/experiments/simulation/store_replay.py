"""Serve requests over tiers of blocks on a simulated clock: the real scheduler and store, modelled times.

    replayed = replay(requests_of(zipf=1.0, count=200, pool=300), Machine(), mode="request")
    replayed.events, summary(replayed)

Scheduler, lookups, moves between tiers and evictions are those of `methods.serving` and `store.tiering.tiered_store`;
no model is run. Blocks have the size of the Llama-3.1-8B shape, and a tier is a budget and a read bandwidth. Times of
passes are those of `ttft_model`, measured on a GPU.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache as memo
from functools import partial
from typing import Any

import numpy as np
import torch

from workbench.core.blocks import Block, Prompt
from workbench.core.errors import BadInput
from workbench.core.kv import KV
from workbench.experiments.latency.ttft_model import TtftModel, fit_ttft
from workbench.experiments.simulation.workload import Workload
from workbench.methods.answered import Generation
from workbench.methods.serving import Scheduler, Ticket
from workbench.methods.serving.scheduler import Mode
from workbench.methods.serving.simulated import SimulatedClock, SimulatedEngine, SimulatedLoaders
from workbench.methods.serving.tickets import HostEngine
from workbench.metrics.answers import Records
from workbench.store import HostTier, TieredStore, key_of
from workbench.store.events import Event, Events, idle_share

LAYERS, HEADS, WIDTH, DTYPE = 32, 8, 128, torch.bfloat16  # shape of Llama-3.1-8B's keys
GB = 1e9
SHAPE, CLOCK = "Llama-3.1-8B's shape", "simulated clock"  # model and device of simulated results
SYSTEM = Block((1, 2, 3), "system")


@dataclass(frozen=True)
class Machine:
    """A simulated machine with its tiers and load.

    budgets            bytes of each tier, fastest first; a tier of 0 bytes is left out
    rates              bytes per second at which a tier is read; the first is read in place
    passage, question  numbers of tokens
    ratio              share of the context that is recomputed
    reuse              False: no block is looked up, and every token is computed
    per_second         mean number of requests that arrive per second
    batch              maximum number of requests computed together
    answer             tokens of an answer
    """

    budgets: Mapping[str, float] = field(default_factory=lambda: {"GPU": 8 * GB, "host": 12 * GB, "disk": 16 * GB})
    rates: Mapping[str, float] = field(default_factory=lambda: {"GPU": float("inf"), "host": 50 * GB, "disk": 5 * GB})
    passage: int = 512
    question: int = 50
    ratio: float = 0.0
    reuse: bool = True
    per_second: float = 8.0
    batch: int = 8
    answer: int = 16

    def __post_init__(self) -> None:
        if not any(self.budgets.values()) or min(self.budgets.values()) < 0:
            raise BadInput(f"budgets are {dict(self.budgets)}: at least one tier of more than 0 bytes is needed")
        if unknown := set(self.budgets) - set(self.rates):
            raise BadInput(f"tier {unknown.pop()!r} has no rate: {', '.join(self.rates)} have")
        if self.per_second <= 0 or min(self.rates.values()) <= 0:
            raise BadInput("requests a second and rates are numbers above 0")

    @property
    def setting(self) -> dict[str, Any]:
        """Sizes, and the budgets of the tiers in GB, for the result column `setting`."""
        sizes = {name: getattr(self, name) for name in ("passage", "question", "answer", "batch")}
        return sizes | {name: size / GB for name, size in self.budgets.items()}

    def store(self, events: Events) -> TieredStore:
        """Return empty tiers, all of them in this machine's memory."""
        tiers = [HostTier(int(size), name=name) for name, size in self.budgets.items() if size]
        return TieredStore(tiers, events=events, clock=events.clock)


@dataclass
class StoreEngine(HostEngine):
    """An engine that looks up blocks and stores the missed ones, and computes nothing."""

    store: TieredStore
    machine: Machine
    seconds: dict[str, float] = field(default_factory=dict)  #: loading time by request

    def seconds_of(self, ticket: Ticket) -> float:
        """Return the time to read a request's blocks from the tiers that hold them at the first call."""
        if ticket.name not in self.seconds:
            tiers = [self.store.tier_of(key) for key in keys_of(ticket)] if self.machine.reuse else []
            size = kv_bytes(self.machine.passage)
            self.seconds[ticket.name] = sum(size / self.machine.rates[tier] for tier in tiers if tier is not None)
        return self.seconds[ticket.name]

    def check(self, ticket: Ticket) -> None:
        """Accept any request."""

    def load(self, ticket: Ticket, arrived: Any = None) -> dict[str, Any]:
        """Look up the blocks of a request; missed ones are stored when it is computed."""
        self.seconds_of(ticket)  # before the blocks move up
        keys = keys_of(ticket) if self.machine.reuse else []
        found = {key: self.store.find(key, request=ticket.name) for key in keys}
        ticket.held = [key for key, each in found.items() if each is None]
        hits = [each for each in found.values() if each is not None]
        tiers = ", ".join(sorted({each.tier for each in hits}))
        return {"bytes": sum(each.kv.nbytes for each in hits), "tier": tiers}

    def prefill(self, tickets: Sequence[Ticket], waits: Any) -> list[bool]:
        """Store the missed blocks, and add first tokens."""
        for ticket in tickets:
            for key in ticket.held:
                self.store.put(key, kv_of(self.machine.passage))
        return self.decode(tickets)

    def decode(self, tickets: Sequence[Ticket]) -> list[bool]:
        """Add one token to each request."""
        for ticket in tickets:
            ticket.tokens.append(0)
        return [len(ticket.tokens) >= ticket.max_new_tokens for ticket in tickets]

    def finish(self, ticket: Ticket) -> Generation:
        """Return an answer of zeros."""
        ttft = (ticket.first or 0.0) - ticket.arrived
        missed = len(ticket.held) * self.machine.passage
        return Generation(
            tuple(ticket.tokens), "", missed + self.machine.question, len(ticket.prompt) - missed, ttft, ()
        )

    def release(self, ticket: Ticket) -> None:
        """Do nothing: a ticket holds names only."""


def keys_of(ticket: Ticket) -> list[str]:
    """Return the keys of a request's passages."""
    return [block_key(block.tokens[0]) for block in ticket.prompt.context[1:]]


def kv_bytes(tokens: int) -> int:
    """Return the bytes of the keys and values of `tokens` tokens."""
    return 2 * LAYERS * HEADS * WIDTH * DTYPE.itemsize * tokens


@memo
def block_key(passage: int) -> str:
    return key_of("8B shape", DTYPE, Block((passage + 10,)) if passage >= 0 else SYSTEM, [SYSTEM])


@memo
def kv_of(tokens: int) -> KV:
    """Return KV that reports its full size but takes hardly any memory."""
    one = torch.zeros(1, 1, 1, dtype=DTYPE).expand(HEADS, tokens, WIDTH)
    return KV([one] * LAYERS, [one] * LAYERS).lock()


MEASURES = ("ttft_ms", "ttft_p95", "per_second", "idle", "hit_rate")


@dataclass(frozen=True)
class ReplayResult:
    """Result of a replay.

    events    on the simulated clock
    tickets   requests in order of arrival
    tiers     content of the tiers at the end
    held      bytes of each tier after each step of the scheduler, [(seconds, {tier: bytes})]
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
) -> ReplayResult:
    """Serve requests with Poisson arrivals. Passages `prepared` are in the tiers beforehand."""
    model = fit_ttft() if model is None else model
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
            clock.advance_to(arrivals[0])
        while arrivals and arrivals[0] <= clock():
            arrivals.popleft()
            number = len(tickets)
            tickets.append(scheduler.submit(_prompt(requests[number], machine), machine.answer, name=str(number)))
        scheduler.step()
        held.append((clock(), {tier.name: tier.bytes for tier in store.tiers}))
    scheduler.close()
    return ReplayResult(mode, machine, list(events), tickets, store.by_tier(), held)


class ArrivingLoaders(SimulatedLoaders):
    """Loaders that do not advance the clock beyond the next arrival."""

    arrivals: deque[float]

    def wait(self, until: float | None) -> None:
        """Advance the clock until a load is due, or a request arrives."""
        moments = [moment for moment in (until, self.arrivals[0] if self.arrivals else None) if moment is not None]
        super().wait(min(moments) if moments else None)


def _prefill_seconds(ticket: Ticket, machine: Machine, model: TtftModel) -> float:
    """Return the seconds to a request's first token, including the encoding of missed blocks."""
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


def summary(replayed: ReplayResult) -> dict[str, Any]:
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


def counts(replayed: ReplayResult) -> Records:
    """Return the rows of `results.Count` of a replay, at its request rate."""
    found = summary(replayed)
    return [{"measure": name, "at": replayed.machine.per_second, "value": found[name]} for name in MEASURES]
