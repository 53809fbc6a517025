"""27K tokens of cached blocks, 15% of them recomputed, and the question: FusionRAG's online step, with its choice.

The time of a candidate that chooses contains the choice: the question is prefilled over the cached pages by a captured
step, the tokens are scored on the device by what the question attends to, and the best go to the host as positions.
`choice_ms` of a report is the part of it until then. "Random rows, no choice" has its rows ready before the clock runs:
what recomputation itself costs.

The first block stands for the system prompt, whose tokens are never chosen. Rows are recomputed in place (cached pages
stay as they are, fresh rows go to pages of their own), or over a gathered copy of the context.
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
from workbench.engine.compile import fused
from workbench.engine.cuda_graphs import Runner
from workbench.engine.forward import prefill
from workbench.engine.paged_question import from_question
from workbench.experiments.bench import stock
from workbench.experiments.bench.pools import describe, filled, token_of
from workbench.experiments.bench.whole_model import GPU, Candidate, Comparison, Sample, Scene, clock
from workbench.experiments.bench.workloads import Workload
from workbench.methods.select.answer_guided import AnswerGuided
from workbench.methods.select.query_guided import QueryGuided

QUESTION, SHARE, CONTEXT = 50, 0.15, 27  # tokens of the question, share that is recomputed, units of the context
NO_CHOICE = "random rows, no choice"
Choice = QueryGuided | AnswerGuided | None  # None: rows that were drawn before


@dataclass
class Online:
    """One prompt over a pool: its cached blocks, the question, and how many rows are recomputed.

    captured   the question, as it chooses, is a captured step; without it its kernels are started one by one
    """

    scene: Scene
    candidate: Candidate
    captured: bool = True
    choosing: list[float] = field(default_factory=list)  # milliseconds of each run

    def __post_init__(self) -> None:
        self.context, self.asked = sizes(self.scene)
        self.count = int(self.context * SHARE)
        self.pool, self.blocks = filled(self.scene, self.context, self.asked + self.count, self.candidate)
        self.runner = Runner(self.scene.model, self.pool, self.captured and GPU)
        runs = self.scene.ids(self.context).split(len(self.blocks[-1]))
        self.tokens = torch.cat((*runs[::-1], self.scene.ids(self.asked)))  # blocks stand in another order

    @cached_property
    def drawn(self) -> Tensor:
        return drawn(self.context, self.count)

    def rows(self, choice: Choice) -> Tensor:
        """Choose the rows of the context that are recomputed, rising, on the host."""
        if choice is None:
            return self.drawn
        begin = perf_counter()
        question = self.tokens[self.context :]
        scores = from_question(self.runner, self.blocks, question, choice.layers, choice.last)
        scores[: len(self.blocks[0])] = -torch.inf
        rows = scores.topk(self.count).indices.sort().values.cpu()
        self.choosing.append((perf_counter() - begin) * 1e3)
        self.candidate.facts["choice_ms"] = median(self.choosing[1:] or self.choosing)  # the first one compiles
        return rows

    def in_place(self, choice: Choice) -> int:
        """Compute chosen rows and the question over the pages, and return the first token."""
        rows = self.rows(choice)
        prompt = self.pool.open(self.blocks, self.asked, rows)
        ids = torch.cat((self.tokens[rows], self.tokens[self.context :]))
        token = int(self.runner.prefill([prompt], [ids])[0].argmax())
        self.pool.close(prompt)
        for captured in self.runner.captured.values():
            describe(self.candidate, captured)
        return token

    def gathered(self, choice: Choice) -> int:
        """Gather the blocks into one contiguous KV, rerotating their keys once, compute the rows over it."""
        rows = torch.cat((self.rows(choice), torch.arange(self.context, self.context + self.asked)))
        kv = self.pool.gather(self.blocks, self.asked)
        return token_of(prefill(self.scene.model, self.tokens, Plan(rows), kv, logits_to_keep=1), self.candidate)


def sizes(scene: Scene) -> tuple[int, int]:
    """Tokens of the context and of the question."""
    return CONTEXT * scene.unit, min(QUESTION, scene.unit)


def drawn(context: int, count: int) -> Tensor:
    """Draw `count` rows of the context, rising."""
    draw = torch.Generator().manual_seed(0)
    return torch.randperm(context, generator=draw)[:count].sort().values


def online(
    scene: Scene, choice: Choice, way: Callable[[Online, Choice], int], compiled: bool, candidate: Candidate
) -> Sample:
    """Prepare one candidate; layers that are not `compiled` are not captured either."""
    prompt = Online(scene, candidate, compiled)
    if choice is not None:
        candidate.facts["choice"] = type(choice).__name__
    if compiled and GPU:
        candidate.after.enter_context(fused(scene.model))
    return partial(clock, partial(way, prompt, choice))


def recompute(scene: Scene) -> Iterator[Comparison]:
    """Yield the workload; operations and bytes count the rows and the question, and no choice."""
    context, count = sizes(scene)
    rows = torch.cat((drawn(context, int(context * SHARE)), torch.arange(context, context + count)))
    shape: dict[str, Any] = {"context": context, "rows": len(rows), "question": count, "choice": "question-guided"}
    flops = scene.flops(len(rows), float((rows + 1).sum()))
    question, answer, place, gather = QueryGuided(), AnswerGuided(), Online.in_place, Online.gathered
    listed: list[tuple[str, Choice, Callable[[Online, Choice], int], bool]] = [
        ("ours", question, place, True),
        ("ours, answer-guided", answer, place, True),
        ("ours, gathered", question, gather, True),
        ("ours, layers not fused, question not captured", question, place, False),
        (f"ours, {NO_CHOICE}", None, place, True),
        (f"ours, {NO_CHOICE}, gathered", None, gather, True),
        (f"ours, {NO_CHOICE}, layers not fused", None, place, False),
    ]
    candidates = [
        Candidate(name, partial(online, scene, choice, way, compiled), 20) for name, choice, way, compiled in listed
    ]
    for name in [name for name in stock.BACKENDS if name in scene.against] or [""]:
        label = f"transformers, full prefill{name and f' ({name})'}"
        candidates.append(Candidate(label, partial(stock.whole, scene, context + count, name), 5))
    yield Workload("15% of 27K computed again", shape, flops, scene.bytes(context)), candidates
