"""Reuse cached blocks: assemble them, recompute some of their tokens, and compute the question over them.

Published systems differ in how blocks are preprocessed before they are cached, at which positions they are reused, and
which of their tokens are recomputed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from transformers import PreTrainedModel

from workbench.core.blocks import Prompt
from workbench.core.errors import BadInput
from workbench.core.kv import KV
from workbench.core.plan import Pass, Plan
from workbench.engine.assembly import Positions, assemble
from workbench.engine.chunked import check_chunk
from workbench.engine.forward import PrefillRequest
from workbench.methods import ReadyRequest
from workbench.methods.attend import Attend
from workbench.methods.correct import Correct, Correction
from workbench.methods.method_fields import check_positions
from workbench.methods.prepare import Prepare
from workbench.methods.prepare.independent import Independent
from workbench.methods.registry import check_options
from workbench.methods.select import Select, check_budget, choose
from workbench.methods.sparse import Sparse
from workbench.store import UNLIMITED, MemoryStore, Store


def positions_named(name: str) -> Positions:
    """Return positions by name. Raises BadInput for an unknown name."""
    check_positions(name)
    return cast(Positions, name)


def as_computed(model: PreTrainedModel, method: Any, prompts: Sequence[Prompt]) -> Sequence[Prompt]:
    """Return prompts as a method computes them: with the soft tokens that its preprocessing adds to passages."""
    return method.with_soft_tokens(model, prompts) if isinstance(method, Reuse) else prompts


@dataclass(frozen=True)
class Reuse:
    r"""Cache every context block and reuse it at its new position; compute the question.

    *Follows released code: `block_generate.py` of TemporaryLoRA/Block-Attention; the other policies have separate
    pages.* TurboRAG's reordered positions are "re-encoded": its released code, `qwen2.py` of MooreThreads/TurboRAG,
    rotates keys by their position in the prompt. Its composite positions, where every passage starts at 0, are "naive".
    "naive" follows Block-Attention's description of PromptCache: each passage keeps the position at which it was
    encoded. PromptCache's released code, `promptcache/cache_engine.py` of yale-sys/prompt-cache at 9027040, encodes a
    schema in one pass and keeps each module at its position in the schema.

    positions   of the reused keys: "re-encoded" for the block's new position (Block-Attention, Full Reuse),
                "naive", as cached (PromptCache, arXiv:2311.04934; TurboRAG's composite ones, arXiv:2410.07590), or
                "shared", as cached and with the longest block directly before the question (APE, arXiv:2502.05431)
    prepare     what a block attends to when it is cached
    select      scores the tokens of cached blocks; the highest are recomputed, together with the question
    ratio       share of the document tokens to recompute, 0 to 1 (the recomputation ratio of CacheBlend and
                FusionRAG; the question is not included); None: the selector decides
    sparse      selects the key tiles that computed tokens attend to
    chunk       query tokens per pass; None: no chunking
    correct     changes the cached keys and values of tokens that are not recomputed
    attend      what computed tokens attend to; None: all preceding tokens

    The keys of a block that moves by $s$ tokens are rotated once; the rows $R$ are computed over the cached blocks:

    $$k_{p+s} = R(s) \, k_p, \qquad R = \text{chosen tokens} \cup \text{question}$$
    """

    positions: Positions = "re-encoded"
    prepare: Prepare = field(default_factory=Independent)
    select: Select | None = None
    ratio: float | None = 0.15
    sparse: Sparse | None = None
    chunk: int | None = None
    correct: Correct | None = None
    attend: Attend | None = None

    def __post_init__(self) -> None:
        positions_named(self.positions)
        check_options(self)
        check_budget(self.ratio)
        if self.positions == "shared" and (self.select or self.correct):
            raise BadInput("positions is 'shared', where passages overlap: recomputed tokens need 're-encoded'")
        if self.correct and self.chunk:
            raise BadInput(f"chunk is {self.chunk}: a corrected cache needs all rows in one pass")
        if self.attend and self.sparse:
            raise BadInput("attend and sparse both restrict what rows attend to: choose one of them")
        if self.attend and self.attend.weighs and not self.select:
            raise BadInput("attend weighs tokens by the scores of a selector: choose one with select")

    @property
    def plain(self) -> bool:
        """Whether the method neither modifies cached rows nor restricts what computed rows attend to."""
        return not (self.correct or self.attend or getattr(self.select, "fresh", False))

    @property
    def in_place(self) -> bool:
        """Whether requests can read blocks in shared pages: cached rows are not modified, or are corrected in pages."""
        if self.correct and (self.positions == "naive" or type(self.correct).over_pages is Correct.over_pages):
            return False
        return not getattr(self.select, "fresh", False)

    def with_soft_tokens(self, model: PreTrainedModel, prompts: Sequence[Prompt]) -> Sequence[Prompt]:
        """Return prompts with the soft tokens that the preprocessing adds to passages."""
        wrap = getattr(self.prepare, "with_soft_tokens", None)
        return prompts if wrap is None else wrap(model, prompts)

    def check(self, model: PreTrainedModel, prompts: Sequence[Prompt]) -> None:
        """Raise BadInput for a model that lacks what a policy needs: soft tokens, a BOS token, layers."""
        if hasattr(self.prepare, "check"):
            self.prepare.check(model)
        for prompt in self.with_soft_tokens(model, prompts[:1]):
            for choice in (self.select, self.correct):
                _ = choice and choice.passes(model, prompt)

    def begin(
        self, model: PreTrainedModel, prompts: Sequence[Prompt], store: Store | None = None, reserve: int = 0
    ) -> list[ReadyRequest]:
        prompts = self.with_soft_tokens(model, prompts)
        cached = self.prepare(model, prompts, MemoryStore(UNLIMITED) if store is None else store)
        return self.begin_over(model, prompts, cached, reserve)

    def begin_over(
        self, model: PreTrainedModel, prompts: Sequence[Prompt], cached: Sequence[Sequence[KV]], reserve: int = 0
    ) -> list[ReadyRequest]:
        """Prepare prompts as `begin` does, over the given KV of their blocks."""
        kvs = [assemble(model, p, c, self.positions, reserve) for p, c in zip(prompts, cached, strict=True)]
        chosen, scores = [torch.tensor([], dtype=torch.int64)] * len(prompts), list[torch.Tensor]()
        if self.select:
            scores = self.select.score_many(model, prompts, kvs)
            system = self.select.system
            chosen = [choose(score, p, self.ratio, system=system) for score, p in zip(scores, prompts, strict=True)]
        corrections = [Correction(rows) for rows in chosen]
        if self.correct:
            corrections = self.correct(model, prompts, kvs, chosen if self.select else None, self.ratio)
        requests = []
        for number, (prompt, kv, each) in enumerate(zip(prompts, kvs, corrections, strict=True)):
            rows = torch.cat((each.rows, prompt.question))
            rule = self.attend.plan(prompt, rows, scores[number] if scores else None) if self.attend else {}
            requests.append(self.start(model, prompt, kv, rows, each, **rule))
        return requests

    def start(
        self,
        model: PreTrainedModel,
        prompt: Prompt,
        kv: KV,
        rows: torch.Tensor,
        corrected: Correction | None = None,
        **plan: Any,
    ) -> ReadyRequest:
        """Return the request that computes `rows` over the assembled KV.

        `corrected` is the result of the correction; `plan` are further fields of `Plan`.
        """
        correction = corrected or Correction(rows)
        scoring = self.select.passes(model, prompt) if self.select else ()
        passes = (*scoring, *correction.passes, Pass(rows.tolist(), len(prompt), forward=1))
        tiles = self.sparse.for_model(model) if self.sparse else None
        planned = Plan(rows, sparse=tiles, adjust=correction.adjust, **plan)
        if self.chunk is not None:
            check_chunk(planned, self.chunk)
        request = PrefillRequest(prompt.tokens, planned, kv)
        computed = len(rows) + correction.computed
        return ReadyRequest(request, passes, computed, len(prompt) - computed, self.chunk)
