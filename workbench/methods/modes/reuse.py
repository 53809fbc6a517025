"""Cached blocks are put in place, some of their tokens are recomputed, and the question is computed over them.

What the published systems differ in are the three choices: how blocks are prepared before they are cached, at which
positions they are reused, and which of their tokens are recomputed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import get_args

import torch
from transformers import PreTrainedModel

from workbench.core.blocks import Prompt
from workbench.core.errors import not_allowed
from workbench.core.kv import KV
from workbench.core.plan import Pass, Plan
from workbench.engine.assembly import Positions, assemble
from workbench.engine.chunked import check_chunk
from workbench.engine.forward import PrefillRequest
from workbench.methods import ReadyRequest
from workbench.methods.prepare import Prepare
from workbench.methods.prepare.independent import Independent
from workbench.methods.registry import check_options
from workbench.methods.select import Select, check_budget
from workbench.methods.sparse import Sparse
from workbench.store import UNLIMITED, MemoryStore, Store


def positions_named(name: str) -> Positions:
    """Return positions by their name. BadInput for an unknown one."""
    for known in get_args(Positions):
        if name == known:
            return known
    raise not_allowed("positions", name, get_args(Positions))


@dataclass(frozen=True)
class Reuse:
    r"""Every context block is cached and reused at its new place; the question is always computed.

    positions   of the reused keys: "re-encoded" for where their block stands now (Block-Attention, Full Reuse), or
                "naive", as cached (PromptCache, arXiv:2311.04934)
    prepare     what a block saw before it was cached
    select      scores the tokens of cached blocks; the best of them are recomputed, together with the question
    ratio       share of the document tokens to recompute, 0 to 1 (the recomputation ratio of CacheBlend and
                FusionRAG; the question is not in it); None: as many as the selector wants
    sparse      chooses the key tiles that the computed rows attend to
    chunk       rows of one pass; None: all at once

    A block that moves by $s$ tokens has its keys rotated once, and the rows $R$ are computed over what is cached:

    $$k_{p+s} = R(s) \, k_p, \qquad R = \text{chosen tokens} \cup \text{question}$$
    """

    positions: Positions = "re-encoded"
    prepare: Prepare = field(default_factory=Independent)
    select: Select | None = None
    ratio: float | None = 0.15
    sparse: Sparse | None = None
    chunk: int | None = None

    def __post_init__(self) -> None:
        positions_named(self.positions)
        check_options(self)
        check_budget(self.ratio)

    def begin(
        self, model: PreTrainedModel, prompts: Sequence[Prompt], store: Store | None = None, reserve: int = 0
    ) -> list[ReadyRequest]:
        cached = self.prepare(model, prompts, MemoryStore(UNLIMITED) if store is None else store)
        kvs = [assemble(model, p, c, self.positions, reserve) for p, c in zip(prompts, cached, strict=True)]
        rows = [prompt.question for prompt in prompts]
        if self.select:
            chosen = self.select.rows(model, prompts, kvs, self.ratio)
            rows = [torch.cat(both) for both in zip(chosen, rows, strict=True)]
        return [self.start(model, *request) for request in zip(prompts, kvs, rows, strict=True)]

    def start(self, model: PreTrainedModel, prompt: Prompt, kv: KV, rows: torch.Tensor) -> ReadyRequest:
        """Return the request that computes `rows` over a KV in which the blocks are in place."""
        scoring = self.select.passes(model, prompt) if self.select else ()
        passes = (*scoring, Pass(rows.tolist(), len(prompt), forward=1))
        plan = Plan(rows, sparse=self.sparse.ready(model) if self.sparse else None)
        if self.chunk is not None:
            check_chunk(plan, self.chunk)
        request = PrefillRequest(prompt.tokens, plan, kv)
        return ReadyRequest(request, passes, len(rows), len(prompt) - len(rows), self.chunk)
