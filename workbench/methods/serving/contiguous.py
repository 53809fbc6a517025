"""Serving engine for any method, with one contiguous KV per request; used on CPUs."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from workbench.core.kv import KV
from workbench.engine.assembly import assembly_of
from workbench.engine.decoding import (
    DecodeRequest,
    StopStrings,
    TokenChoice,
    check_options,
    eos_ids,
    forward_step,
    next_token,
    special_ids,
    text_of,
)
from workbench.methods import Method, ReadyRequest, finish
from workbench.methods.answered import Generation
from workbench.methods.generation import method_of
from workbench.methods.modes.reuse import Reuse, as_computed
from workbench.methods.preprocessing.lookups import KeyProbe
from workbench.methods.request_report import Lookup, WatchedStore, receipts_of, with_seconds
from workbench.methods.serving.computation import rows_of
from workbench.methods.serving.tickets import Arrived, HostEngine, Ticket, Wait
from workbench.models.model_names import check_length
from workbench.models.spec import spec_for
from workbench.store import Store


class LoadedStore(WatchedStore):
    """The blocks of one request, prefetched by its loader."""

    def __init__(self, store: Store):
        super().__init__(store)
        self.loaded: dict[str, KV] = {}

    def load(self, key: str) -> KV | None:
        """Read a block, once."""
        if key not in self.loaded and (kv := super().get(key)) is not None:
            self.loaded[key] = kv
        return self.loaded.get(key)

    def get(self, key: str) -> KV | None:
        """Return a block that was loaded, or stored since."""
        if (kv := self.loaded.get(key)) is not None:
            return kv
        missed = [lookup for lookup in self.lookups if lookup.key == key]
        if missed and not (hasattr(self.store, "__contains__") and key in self.store):
            return None
        if (kv := super().get(key)) is not None and missed:
            self.lookups.remove(missed[0])
        return kv

    @property
    def hits(self) -> list[Lookup]:
        """Look-ups that were hits."""
        return [lookup for lookup in self.lookups if lookup.miss is None]


@dataclass
class HeldBlocks:
    """State of one request in the engine; `placed` is its KV if blocks arrive layer by layer."""

    store: LoadedStore
    placed: KV | None = None
    ready: ReadyRequest | None = None
    decoding: DecodeRequest | None = None
    encoding: float = 0.0  #: seconds


@dataclass
class ContiguousEngine(HostEngine):
    """Computes requests with `method` over blocks of `store`; other options, and the answers, are those of `generate`.

    In layer mode, the loader assembles a request layer by layer if all its blocks are stored and no token is
    recomputed; other requests are assembled when all blocks have arrived.
    """

    model: PreTrainedModel
    tokenizer: Any
    store: Store
    method: Method | str = field(default_factory=Reuse)
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    stop: str | Sequence[str] = ()

    def __post_init__(self) -> None:
        stops = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        check_options(1, self.temperature, self.top_p, stops, self.tokenizer)
        self.method = self._method = method_of(self.method)
        self._choose, self._stops = TokenChoice(self.temperature, self.top_p), StopStrings(stops, self.tokenizer)
        self._eos = eos_ids(self.model, self.tokenizer) | special_ids(stops, self.tokenizer)
        self._spec = spec_for(self.model)

    def check(self, ticket: Ticket) -> None:
        """Raise BadInput for a prompt that does not fit the model."""
        self._spec.check_tokens(ticket.prompt.tokens)
        check_length(ticket.max_new_tokens, self._spec.context)
        for block in ticket.prompt.context:
            self._spec.check_block(len(block))

    def rows(self, ticket: Ticket) -> int:
        """Estimate how many tokens the prefill of a request computes."""
        return rows_of(self._method, ticket)

    def load(self, ticket: Ticket, arrived: Arrived | None = None) -> dict[str, Any]:
        """Read the blocks that the method will look up."""
        held = ticket.held = HeldBlocks(LoadedStore(self.store))
        if isinstance(self._method, Reuse):
            probe = KeyProbe(self._spec.empty(1))
            self._method.prepare(self.model, [ticket.prompt], probe)
            for key in probe.keys:
                if ticket.cancelled:
                    break
                held.store.load(key)
            if arrived is not None and len(probe.keys) == len(held.store.loaded) and self._by_layer(ticket):
                self._place(ticket, held, arrived)
        read = held.store.hits
        tiers = sorted({lookup.tier for lookup in read})
        return {"bytes": sum(lookup.bytes for lookup in read), "tier": ", ".join(tiers)}

    def admit(self, ticket: Ticket) -> dict[str, Any] | None:
        """Admit a request at once if the method reads no blocks; such requests are computed in order of arrival."""
        return None if isinstance(self._method, Reuse) else self.load(ticket)

    def prefill(self, tickets: Sequence[Ticket], waits: Sequence[Wait | None]) -> list[bool]:
        """Compute the first tokens in one packed forward pass."""
        for ticket in tickets:
            ticket.tokens.clear()
            self._begin(ticket, ticket.held)
        logits = finish(self.model, [ticket.held.ready for ticket in tickets], waits)
        ended = []
        for ticket, row in zip(tickets, logits, strict=True):
            ready = ticket.held.ready
            random = torch.Generator().manual_seed(self.seed)
            plan = ready.request.plan
            ticket.held.decoding = DecodeRequest(ready.request.kv, plan.sees, random, backend=plan.backend)
            ended.append(self._take(ticket, row))
        return ended

    def decode(self, tickets: Sequence[Ticket]) -> list[bool]:
        """Compute one more token of every request."""
        rows = forward_step(self.model, [t.held.decoding for t in tickets], max(t.max_new_tokens for t in tickets))
        return [self._take(ticket, row) for ticket, row in zip(tickets, rows, strict=True)]

    def finish(self, ticket: Ticket) -> Generation:
        """Return the answer, with its receipt."""
        held: HeldBlocks = ticket.held
        assert held.ready is not None
        positions = getattr(self._method, "positions", "re-encoded")
        prompts = as_computed(self.model, self._method, [ticket.prompt])
        (receipt,) = receipts_of(prompts, [held.ready], held.store.lookups, positions)
        seconds = ticket.seconds | {"encode": held.encoding}
        seconds["prefill"] = max(0.0, seconds.get("prefill", 0.0) - held.encoding)
        text = "" if self.tokenizer is None else text_of(self.tokenizer, ticket.tokens, self.stop)
        ttft = (ticket.first or 0.0) - ticket.arrived
        counts = held.ready.computed, held.ready.reused
        return Generation(tuple(ticket.tokens), text, *counts, ttft, held.ready.passes, with_seconds(receipt, seconds))

    def release(self, ticket: Ticket) -> None:
        """Release a request's KV."""
        ticket.held = None

    def _by_layer(self, ticket: Ticket) -> bool:
        method = self._method
        if not isinstance(method, Reuse) or method.select or method.sparse or not method.plain:
            return False
        return method.chunk is None and not ticket.cancelled

    def _place(self, ticket: Ticket, held: HeldBlocks, arrived: Arrived) -> None:
        """Assemble the blocks of a request, layer by layer."""
        assert isinstance(self._method, Reuse)
        (cached,) = self._method.prepare(self.model, [ticket.prompt], held.store)
        reserve = self._reserve(ticket)
        kv, place = assembly_of(self.model, ticket.prompt, cached, self._method.positions, reserve)
        held.placed = kv
        for layer in range(self._spec.layers):
            place(layer)
            arrived(layer)

    def _begin(self, ticket: Ticket, held: HeldBlocks) -> None:
        if held.placed is not None:
            assert isinstance(self._method, Reuse)
            held.ready = self._method.start(self.model, ticket.prompt, held.placed, ticket.prompt.question)
            return
        begin, before = perf_counter(), held.store.seconds["encode"]
        held.store.resume()
        (held.ready,) = self._method.begin(self.model, [ticket.prompt], held.store, self._reserve(ticket))
        held.encoding = min(perf_counter() - begin, held.store.seconds["encode"] - before)

    def _take(self, ticket: Ticket, row: Tensor) -> bool:
        """Choose the next token; return whether the answer has ended."""
        request = ticket.held.decoding
        if (token := next_token(request, row, self._choose, self._stops, self._eos)) is not None:
            ticket.tokens.append(token)
        whole = self._spec.context is not None and len(request.kv) >= self._spec.context
        return bool(request.ended or len(ticket.tokens) >= ticket.max_new_tokens or whole)

    def _reserve(self, ticket: Ticket) -> int:
        context = self._spec.context
        return ticket.max_new_tokens if context is None else min(ticket.max_new_tokens, context - len(ticket.prompt))
