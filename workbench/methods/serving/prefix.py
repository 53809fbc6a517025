"""Serving engine with a prefix cache: computes the tokens after the longest cached prefix of blocks."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from workbench.core.kv import KV
from workbench.core.plan import Pass, Plan
from workbench.engine.assembly import empty
from workbench.engine.forward import PrefillRequest
from workbench.methods import Method, ReadyRequest
from workbench.methods.modes.full import Full
from workbench.methods.serving.contiguous import ContiguousEngine, HeldBlocks
from workbench.methods.serving.tickets import Ticket, Wait
from workbench.store import fingerprint, key_of


@dataclass
class PrefixEngine(ContiguousEngine):
    """Full attention over the longest prefix of blocks in `store`.

    The KV of every block is stored under the chain of blocks before it, as in the prefix caches of vLLM and SGLang.
    """

    method: Method | str = field(default_factory=Full)

    def prefill(self, tickets: Sequence[Ticket], waits: Sequence[Wait | None]) -> list[bool]:
        """Compute the first tokens, and store the computed blocks."""
        ended = super().prefill(tickets, waits)
        for ticket in tickets:
            prompt, kv = ticket.prompt, ticket.held.ready.request.kv
            first = int(ticket.held.ready.request.plan.rows[0])
            for key, block, start in zip(self._chain(ticket), prompt.context, prompt.starts, strict=False):
                if start >= first:
                    self.store.put(key, kv.slice(start, start + len(block)).lock())
        return ended

    def _begin(self, ticket: Ticket, held: HeldBlocks) -> None:
        prompt, found = ticket.prompt, list[KV]()
        for key in self._chain(ticket):
            if (kv := held.store.get(key)) is None:
                break
            found.append(kv)
        length = sum(map(len, found))
        kv = empty(self.model, len(prompt), self._reserve(ticket))
        for mine, *parts in zip((*kv.keys, *kv.values), *((*one.keys, *one.values) for one in found), strict=True):
            if parts:
                mine[:, :length] = torch.cat([part.to(mine.device) for part in parts], 1)
        rows = torch.arange(length, len(prompt))
        passes = (Pass(range(length, len(prompt)), len(prompt)),)
        request = PrefillRequest(prompt.tokens, Plan(rows), kv)
        held.ready = ReadyRequest(request, passes, len(rows), length)

    def _chain(self, ticket: Ticket) -> list[str]:
        """Return the key of every context block, as encoded after all blocks before it."""
        model_key, blocks = fingerprint(self.model), ticket.prompt.context
        return [key_of(model_key, self.model.dtype, block, blocks[:i]) for i, block in enumerate(blocks)]
