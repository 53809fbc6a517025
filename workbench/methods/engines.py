"""Select the engine that answers prompts, and give the reason.

paged        pages of a pool, CUDA graphs, continuous batching (`methods.paged.answers`). The default on a GPU
contiguous   one contiguous KV per request, plain forward passes. For CPUs, sliding windows, layers whose queries are
             returned, early exits, and attention rules that restrict the answer
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from threading import RLock
from typing import Any, Literal, Protocol
from weakref import WeakSet

import torch
from transformers import PreTrainedModel

from workbench.core.blocks import Prompt
from workbench.core.errors import BadInput
from workbench.core.masks import Sees, causal, visible
from workbench.core.plan import Plan
from workbench.engine.attention_backends.attention_problem import AttentionProblem
from workbench.engine.attention_backends.choice import backend_named, on_gpu
from workbench.engine.graphs.cuda_graphs import Runner
from workbench.engine.pages.block_pages import BlockPages
from workbench.engine.pages.page_allocator import NoPages
from workbench.engine.pages.paged_pool import Pool
from workbench.methods import Method, ReadyRequest
from workbench.methods.method_fields import check_engine
from workbench.methods.registry import spec_of
from workbench.models.spec import attach

PAGE = 64  # tokens per page
TOKENS = 1 << 17  # default size of a pool on a GPU, limited to a quarter of its free memory
LEAST_TOKENS = 1 << 12


@dataclass(frozen=True)
class EngineChoice:
    """The selected engine, and the reason."""

    name: Literal["paged", "contiguous"]
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


def choose_engine(
    model: PreTrainedModel,
    method: Method,
    prompts: Sequence[Prompt] = (),
    max_new_tokens: int = 1,
    asked: str = "auto",
) -> EngineChoice:
    """Select the engine for prompts that are answered by `method`; `asked` is "auto", "paged" or "contiguous".

    Raises BadInput for another name, and if "paged" is requested but impossible.
    """
    check_engine(asked)
    if asked == "contiguous":
        return EngineChoice("contiguous", "asked for by name")
    spec = attach(model)
    if asked == "auto" and not on_gpu(spec.device):
        return EngineChoice("contiguous", f"no CUDA graphs on {spec.device}: a GPU with Triton is needed")
    refusal = why_not_pages(model) or _why_not_rule(method, prompts, max_new_tokens)
    if not refusal:
        return EngineChoice(
            "paged", "asked for by name" if asked == "paged" else f"pages and captured steps on {spec.device}"
        )
    if asked == "paged":
        raise BadInput(f"engine 'paged' cannot answer: {refusal}")
    return EngineChoice("contiguous", refusal)


def why_not_pages(model: PreTrainedModel) -> str:
    """Return why a model cannot run over pages; "" if it can."""
    spec = attach(model)
    if spec.window:
        return f"the model has a sliding window of {spec.window} tokens"
    for heads, width in set(spec.shapes) if on_gpu(spec.device) else ():
        problem = AttentionProblem(1, PAGE, (heads, heads), width, spec.dtype, spec.device)
        if reason := backend_named("question_attention").refuses(problem):
            return f"question_attention cannot read its pages: {reason}"
    return ""


def why_not_captured(plan: Plan) -> str:
    """Return why a `Runner` cannot compute a plan over pages; "" if it can."""
    if plan.sees is not causal:
        return "its mask rule is not causal"
    if plan.return_queries:
        return f"it returns the queries of layers {list(plan.return_queries)}"
    if plan.num_layers is not None:
        return f"it stops after {plan.num_layers} layers"
    if plan.sparse is not None:
        return "a sparse method selects tiles while it runs"
    if plan.adjust is not None:
        return "its cache is corrected while it runs"
    return "it names its backend" if plan.backend is not None else ""


def _why_not_rule(method: Method, prompts: Sequence[Prompt], count: int) -> str:
    """Return why answer tokens are not plainly causal under a method's mask rule; "" if they are."""
    if getattr(attend := getattr(method, "attend", None), "answer", False):
        return f"attend={spec_of(attend)} restricts what answer tokens attend to"
    rule = getattr(method, "sees", None)
    if rule is None:
        return ""
    for number, prompt in enumerate(prompts):
        if not _plain(rule(prompt), len(prompt), count):
            return f"the mask rule of prompt {number} is not causal for answer tokens"
    return ""


def _plain(sees: Sees, length: int, count: int) -> bool:
    rows = torch.arange(length, length + count)
    cols = torch.arange(length + count)
    return bool((visible(sees, rows, cols) == (cols <= rows[:, None])).all())


class Pages:
    """The pool, runner and blocks of one model, attached to it so that later calls reuse captured graphs.

    A copy of the model gets a new object. `unread` are finished requests whose KV may still be read; they are copied
    out when their pages are needed.
    """

    def __init__(self) -> None:
        self.lock = RLock()
        self.unread: WeakSet[UnreadKV] = WeakSet()
        self.abandoned = deque[tuple[Callable[[Any], None], Sequence[Any]]]()  # (release, requests)
        self._runner: Runner | None = None
        self._blocks: BlockPages | None = None
        self._weights: list[torch.Tensor] = []
        self._state: object = None

    def __deepcopy__(self, memo: object) -> "Pages":
        return Pages()

    def __reduce__(self) -> tuple[type["Pages"], tuple[()]]:
        return Pages, ()

    @contextmanager
    def use(self, model: PreTrainedModel) -> Iterator[None]:
        """Lock the pages within the block, and make the model's device the current one."""
        gpu = model.device.type == "cuda"
        with self.lock, torch.cuda.device(model.device) if gpu else nullcontext():
            yield

    def of(self, model: PreTrainedModel, needed: int) -> tuple[Runner, BlockPages]:
        """Return runner and blocks over a pool of at least `needed` pages.

        The pool is reallocated if it is too small, or if the model's weights have moved.
        """
        self.sweep()
        state = self._model_state(model)
        pages = 0 if self._runner is None else self._runner.pool.pages - 1
        if self._runner is None or self._blocks is None or self._state != state or pages < needed:
            for unread in list(self.unread):
                unread.copy_out()
            self._runner = self._blocks = None
            try:
                pool = Pool(model, 1 + max(needed, default_pool_tokens(model) // PAGE), PAGE)
            except torch.OutOfMemoryError:
                raise NoPages(needed, 0, "no memory for a pool: a request") from None
            self._runner, self._blocks = Runner(model, pool, coarse=True), BlockPages(pool)
            self._weights = list(model.parameters())
            self._state = self._model_state(model)
        return self._runner, self._blocks

    def sweep(self) -> None:
        """Free the pages of requests whose results were garbage-collected."""
        while self.abandoned:
            release, requests = self.abandoned.popleft()
            for request in requests:
                release(request)

    def _model_state(self, model: PreTrainedModel) -> object:
        return model.dtype, model.device, model.get_input_embeddings(), [x.data_ptr() for x in self._weights]


class PageHolder(Protocol):
    """Owner of requests of a model over pages (`PagedAnswers`)."""

    model: PreTrainedModel

    def copy_out(self, request: Any) -> ReadyRequest:
        """Copy a request out of its pages, and free them."""

    def release(self, request: Any) -> None:
        """Free the pages of a request."""

    def force(self, requests: Sequence[Any], answers: Sequence[Sequence[int]]) -> list[torch.Tensor] | None:
        """Run teacher-forced answers over the pages of requests (`Answered.force`)."""


class UnreadKV:
    """Finished requests whose KV stays in pages until it is read."""

    def __init__(self, pages: Pages, holder: PageHolder, requests: Sequence[Any]):
        self.pages, self.holder, self.requests = pages, holder, requests
        pages.unread.add(self)

    def copy_out(self) -> list[ReadyRequest]:
        """Copy the requests out of their pages, and return them."""
        with self.pages.lock:
            return [self.holder.copy_out(request) for request in self.requests]

    def force(self, answers: Sequence[Sequence[int]]) -> list[torch.Tensor] | None:
        """Run teacher-forced answers over the pages (`Answered.force`)."""
        with self.pages.use(self.holder.model):
            return self.holder.force(self.requests, answers)

    def __del__(self) -> None:
        self.pages.abandoned.append((self.holder.release, self.requests))  # deferred: the pool may be in use now


def pages_of(model: PreTrainedModel) -> Pages:
    """Return the `Pages` of a model."""
    name = "_workbench_pages"
    if name not in model.__dict__:
        model.__dict__[name] = Pages()
    pages: Pages = model.__dict__[name]
    return pages


def default_pool_tokens(model: PreTrainedModel) -> int:
    """Return the default size of a new pool in tokens, by the memory that is free now."""
    spec = attach(model)
    if spec.device.type != "cuda":
        return LEAST_TOKENS
    torch.cuda.empty_cache()
    each = sum(2 * heads * width for heads, width in spec.shapes) * spec.dtype.itemsize
    free, _ = torch.cuda.mem_get_info(spec.device)
    return max(LEAST_TOKENS, min(TOKENS, free // 4 // each))
