"""27K tokens of cached blocks, 15% of them recomputed, and the question: FusionRAG's online step, with its selection.

The time of a candidate with a selection includes it: the question is prefilled over the cached pages by a captured
step, the tokens are scored on the device by the question's attention, and the positions of the highest are copied to
the host. `choice_ms` of a report is the time until then. "Gathered" does not wait for the host: the device continues
with the rows that it has selected, as answers do. "Random rows, no choice" draws its rows before timing: the cost of
recomputation itself.

Other shares than 15% are separate workloads: none, 5% and 30% (FusionRAG, figure 14a). "Loaded" adds loading: the
context's pages are first copied from pinned host memory to the GPU, within the time.

The first block represents the system prompt, whose tokens are not selected. Rows are recomputed in place (cached pages
are unchanged, recomputed rows go to separate pages), or over a gathered copy of the context.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from workbench.core.plan import Plan
from workbench.engine.device_rows import DeviceRows
from workbench.engine.forward import PrefillOutput, PrefillRequest, prefill_many
from workbench.engine.graphs.cuda_graphs import Runner
from workbench.engine.layers.fused_layers import fused
from workbench.engine.pages.paged_question import from_question
from workbench.experiments.bench.kernels.workloads import KernelWorkload
from workbench.experiments.bench.models import whole_model
from workbench.experiments.bench.models.whole_model import (
    GPU,
    Candidate,
    Comparison,
    Sample,
    Scene,
    clock,
    describe,
    filled_pool,
    token_of,
)
from workbench.methods.select.answer_guided import AnswerGuided
from workbench.methods.select.query_guided import QueryGuided

QUESTION, SHARE, CONTEXT = 50, 0.15, 27  # tokens of the question, share that is recomputed, units of the context
SHARES = (0.0, 0.05, 0.30)  # further shares
LOADED = "ours, loaded from host memory"
NO_CHOICE = "random rows, no choice"
Choice = QueryGuided | AnswerGuided | None  # None: rows drawn in advance


@dataclass
class Online:
    """One prompt over a pool: its cached blocks, the question, and the number of recomputed rows.

    captured   the question's selection is a captured step; otherwise its kernels are launched one by one
    """

    scene: Scene
    candidate: Candidate
    captured: bool = True
    share: float = SHARE
    choosing: list[float] = field(default_factory=list)  #: milliseconds of each run

    def __post_init__(self) -> None:
        self.context, self.asked = sizes(self.scene)
        self.count = int(self.context * self.share)
        self.pool, self.blocks = filled_pool(self.scene, self.context, self.asked + self.count, self.candidate.facts)
        self.runner = Runner(self.scene.model, self.pool, self.captured and GPU)
        runs = self.scene.ids(self.context).split(len(self.blocks[-1]))
        self.tokens = torch.cat((*runs[::-1], self.scene.ids(self.asked)))  # blocks in a different order than cached

    @cached_property
    def drawn_rows(self) -> Tensor:
        return draw_rows(self.context, self.count)

    def rows(self, choice: Choice) -> Tensor:
        """Select the rows of the context to recompute, ascending, on the host."""
        if choice is None:
            return self.drawn_rows
        begin = perf_counter()
        rows = self.on_device(choice).cpu()
        self.choosing.append((perf_counter() - begin) * 1e3)
        self.candidate.facts["choice_ms"] = median(self.choosing[1:] or self.choosing)  # the first one compiles
        return rows

    def on_device(self, choice: QueryGuided | AnswerGuided, meanwhile: Callable[[], None] | None = None) -> Tensor:
        """Select the rows, ascending, without waiting for them; `meanwhile` is that of `from_question`."""
        question = self.tokens[self.context :]
        to = choice.layers, choice.last
        scores = from_question(self.runner, self.blocks, question, *to, meanwhile=meanwhile)
        scores[: len(self.blocks[0])] = -torch.inf
        return scores.topk(self.count).indices.sort().values

    @cached_property
    def host(self) -> list[Tensor]:
        """Keys and values of the context's pages in host memory, pinned on a GPU."""
        tensors = [tensor[:, self._slots].cpu() for tensor in (*self.pool.keys, *self.pool.values)]
        return [tensor.pin_memory() for tensor in tensors] if GPU else tensors

    @cached_property
    def _slots(self) -> slice:
        """The context's slots in the pool, whose pages were allocated consecutively."""
        pages = torch.cat([block.pages for block in self.blocks])
        return slice(int(pages.min()) * self.pool.size, (int(pages.max()) + 1) * self.pool.size)

    def load(self) -> None:
        """Copy the pages of the context to the device."""
        for target, source in zip((*self.pool.keys, *self.pool.values), self.host, strict=True):
            target[:, self._slots].copy_(source, non_blocking=True)
        self.candidate.facts["loaded_gb"] = sum(tensor.nbytes for tensor in self.host) / 1e9

    def loaded(self, choice: Choice) -> int:
        """Load the context, then compute over the pages."""
        self.load()
        return self.in_place(choice)

    def in_place(self, choice: Choice) -> int:
        """Compute selected rows and the question over the pages, and return the first token."""
        rows = self.rows(choice)
        prompt = self.pool.open(self.blocks, self.asked, rows)
        ids = torch.cat((self.tokens[rows], self.tokens[self.context :]))
        token = int(self.runner.prefill([prompt], [ids])[0].argmax())
        self.pool.close(prompt)
        for captured in self.runner.captured.values():
            describe(self.candidate, captured)
        return token

    def recompute_gathered(self, choice: Choice) -> int:
        """Compute the rows over one contiguous KV while the blocks are gathered into it, rerotating their keys once."""
        model = self.scene.model
        if choice is None:
            rows = torch.cat((self.drawn_rows, torch.arange(self.context, self.context + self.asked)))
            kv, fill = self.pool.gathering(self.blocks, self.asked, "re-encoded")
            (output,) = prefill_many(model, [PrefillRequest(self.tokens, Plan(rows), kv)], 1, [fill])
            return token_of(output, self.candidate)
        ahead = list[DeviceRows]()

        def make() -> None:
            kv, fill = self.pool.gathering(self.blocks, self.asked, "re-encoded")
            ahead.append(DeviceRows(model, self.tokens, self.count + self.asked, kv, fill))

        chosen = self.on_device(choice, make)
        logits = ahead[0].compute(chosen)
        return token_of(PrefillOutput(logits[None], {}, ahead[0].backends), self.candidate)


def sizes(scene: Scene) -> tuple[int, int]:
    """Return the tokens of the context and of the question."""
    return CONTEXT * scene.unit, min(QUESTION, scene.unit)


def draw_rows(context: int, count: int) -> Tensor:
    """Draw `count` rows of the context, ascending."""
    draw = torch.Generator().manual_seed(0)
    return torch.randperm(context, generator=draw)[:count].sort().values


def online(
    scene: Scene,
    choice: Choice,
    way: Callable[[Online, Choice], int],
    compiled: bool,
    candidate: Candidate,
    share: float = SHARE,
) -> Sample:
    """Set up one candidate; layers that are not `compiled` are not captured either."""
    prompt = Online(scene, candidate, compiled, share)
    if way is Online.loaded:
        _ = prompt.host  # copied before timing starts
    if choice is not None:
        candidate.facts["choice"] = type(choice).__name__
    if compiled and GPU:
        candidate.after.enter_context(fused(scene.model))
    return partial(clock, partial(way, prompt, choice))


def recompute(scene: Scene) -> Iterator[Comparison]:
    """Yield the workloads, 15% first; FLOPs and bytes count the rows and the question, without the selection."""
    question, answer, place, gather = QueryGuided(), AnswerGuided(), Online.in_place, Online.recompute_gathered
    listed: list[tuple[str, Choice, Callable[[Online, Choice], int], bool]] = [
        ("ours", question, place, True),
        ("ours, answer-guided", answer, place, True),
        (LOADED, question, Online.loaded, True),
        ("ours, gathered", question, gather, True),
        ("ours, answer-guided, gathered", answer, gather, True),
        ("ours, layers not fused, question not captured", question, place, False),
        (f"ours, {NO_CHOICE}", None, place, True),
        (f"ours, {NO_CHOICE}, gathered", None, gather, True),
        (f"ours, {NO_CHOICE}, layers not fused", None, place, False),
    ]
    candidates = [
        Candidate(name, partial(online, scene, choice, way, compiled), 20) for name, choice, way, compiled in listed
    ]
    yield _workload(scene, SHARE), candidates + _full(scene, 5)
    for share in SHARES:
        choice = question if share else None  # no choice without recomputed tokens
        ways: list[tuple[str, Choice, Callable[[Online, Choice], int]]] = [("ours", choice, place)]
        ways += [(f"ours, {NO_CHOICE}", None, place)] if share else []
        ways.append((LOADED, choice, Online.loaded))
        candidates = [
            Candidate(name, partial(online, scene, choice, way, True, share=share), 20) for name, choice, way in ways
        ]
        yield _workload(scene, share), candidates + _full(scene, 3)


def _workload(scene: Scene, share: float) -> KernelWorkload:
    """Describe the work of one share."""
    context, count = sizes(scene)
    rows = torch.cat((draw_rows(context, int(context * share)), torch.arange(context, context + count)))
    shape: dict[str, Any] = {"context": context, "rows": len(rows), "question": count, "recomputed": share}
    shape |= {"choice": "question-guided"} if share else {}
    flops = scene.flops(len(rows), float((rows + 1).sum()))
    return KernelWorkload(f"{share:.0%} of 27K computed again", shape, flops, scene.bytes(context))


def _full(scene: Scene, runs: int) -> list[Candidate]:
    """Return the baseline: stock transformers over the whole prompt."""
    listed = []
    for name in [name for name in whole_model.BACKENDS if name in scene.against] or [""]:
        label = f"transformers, full prefill{name and f' ({name})'}"
        listed.append(Candidate(label, partial(whole_model.prefill_whole, scene, sum(sizes(scene)), name), runs))
    return listed
