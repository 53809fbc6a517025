"""A machine on a simulated clock: tiers of budgets and rates, and an engine that looks blocks up and computes nothing.

Blocks have the bytes of the Llama-3.1-8B shape.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache as memo
from typing import Any

import torch

from workbench.core.blocks import Block
from workbench.core.errors import BadInput
from workbench.core.kv import KV
from workbench.methods.answered import Generation
from workbench.methods.serving import Ticket
from workbench.methods.serving.tickets import OnHost
from workbench.store import HostTier, TieredStore, key_of
from workbench.store.events import Events

LAYERS, HEADS, WIDTH, DTYPE = 32, 8, 128, torch.bfloat16  # of the keys of Llama-3.1-8B
GB = 1e9
SHAPE, CLOCK = "Llama-3.1-8B's shape", "simulated clock"  # model and device of simulated results
SYSTEM = Block((1, 2, 3), "system")


@dataclass(frozen=True)
class Machine:
    """Where blocks lie and how fast they come.

    budgets    bytes of every tier, the fastest first; a tier of 0 bytes is left out
    rates      bytes a second at which a tier is read; the first one is read in place
    passage, question      tokens
    ratio      share of the context that is recomputed
    reuse       False: no block is looked up, and every token is computed
    per_second, batch, answer       requests that arrive, on average; computed together; tokens of an answer
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
            raise BadInput(f"budgets {dict(self.budgets)}: at least one tier of more than 0 bytes is needed")
        if unknown := set(self.budgets) - set(self.rates):
            raise BadInput(f"tier {unknown.pop()!r} has no rate: {', '.join(self.rates)} have")
        if self.per_second <= 0 or min(self.rates.values()) <= 0:
            raise BadInput("requests a second and rates are numbers above 0")

    @property
    def setting(self) -> dict[str, Any]:
        """Sizes, and the budgets of the tiers in GB, for the column of this name."""
        sizes = {name: getattr(self, name) for name in ("passage", "question", "answer", "batch")}
        return sizes | {name: size / GB for name, size in self.budgets.items()}

    def store(self, events: Events) -> TieredStore:
        """Return the tiers, empty; all of them lie in this machine's memory."""
        tiers = [HostTier(int(size), name=name) for name, size in self.budgets.items() if size]
        return TieredStore(tiers, events=events, clock=events.clock)


@dataclass
class StoreEngine(OnHost):
    """An engine that looks blocks up and keeps what was missed, and computes nothing."""

    store: TieredStore
    machine: Machine
    seconds: dict[str, float] = field(default_factory=dict)  # of loading, by request

    def seconds_of(self, ticket: Ticket) -> float:
        """Return in which time the blocks of a request are read from where they lie when it is first asked for."""
        if ticket.name not in self.seconds:
            lies = [self.store.where(key) for key in keys_of(ticket)] if self.machine.reuse else []
            size = kv_bytes(self.machine.passage)
            self.seconds[ticket.name] = sum(size / self.machine.rates[tier] for tier in lies if tier is not None)
        return self.seconds[ticket.name]

    def check(self, ticket: Ticket) -> None:
        """Take any request."""

    def load(self, ticket: Ticket, arrived: Any = None) -> dict[str, Any]:
        """Find the blocks of a request; those that are missed are kept when it is computed."""
        self.seconds_of(ticket)  # before the blocks move up
        keys = keys_of(ticket) if self.machine.reuse else []
        found = {key: self.store.find(key, request=ticket.name) for key in keys}
        ticket.held = [key for key, each in found.items() if each is None]
        there = [each for each in found.values() if each is not None]
        tiers = ", ".join(sorted({each.tier for each in there}))
        return {"bytes": sum(each.kv.nbytes for each in there), "tier": tiers}

    def prefill(self, tickets: Sequence[Ticket], waits: Any) -> list[bool]:
        """Keep the blocks that were missed, and give first tokens."""
        for ticket in tickets:
            for key in ticket.held:
                self.store.put(key, kv_of(self.machine.passage))
        return self.decode(tickets)

    def decode(self, tickets: Sequence[Ticket]) -> list[bool]:
        """Give one more token."""
        for ticket in tickets:
            ticket.tokens.append(0)
        return [len(ticket.tokens) >= ticket.max_new_tokens for ticket in tickets]

    def finish(self, ticket: Ticket) -> Generation:
        """Return tokens 0."""
        ttft = (ticket.first or 0.0) - ticket.arrived
        missed = len(ticket.held) * self.machine.passage
        return Generation(
            tuple(ticket.tokens), "", missed + self.machine.question, len(ticket.prompt) - missed, ttft, ()
        )

    def release(self, ticket: Ticket) -> None:
        """Let go of nothing: what is held are names."""


def keys_of(ticket: Ticket) -> list[str]:
    """Return the keys of a request's passages."""
    return [block_key(block.tokens[0]) for block in ticket.prompt.context[1:]]


def kv_bytes(tokens: int) -> int:
    """Return the bytes of the keys and values of so many tokens."""
    return 2 * LAYERS * HEADS * WIDTH * DTYPE.itemsize * tokens


@memo
def block_key(passage: int) -> str:
    return key_of("8B shape", DTYPE, Block((passage + 10,)) if passage >= 0 else SYSTEM, [SYSTEM])


@memo
def kv_of(tokens: int) -> KV:
    """Return KV that takes its bytes in the books, and hardly any in memory."""
    one = torch.zeros(1, 1, 1, dtype=DTYPE).expand(HEADS, tokens, WIDTH)
    return KV([one] * LAYERS, [one] * LAYERS).lock()
