"""Select the context rows that a request recomputes, over its pages.

If thousands of rows are recomputed, the GPU itself selects them and starts to compute them, while the host selects rows
by the same scores. If the host selects other rows, the GPU's result is discarded.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from workbench.core.blocks import Prompt
from workbench.core.kv import KV
from workbench.core.utils.wide_copies import fetched
from workbench.engine.device_rows import DeviceRows
from workbench.engine.graphs.batch_buckets import LARGE
from workbench.engine.graphs.cuda_graphs import Runner
from workbench.engine.pages.paged_prompt import Cached
from workbench.engine.pages.paged_question import from_question
from workbench.methods.modes.reuse import Reuse
from workbench.methods.select import QuestionGuided, budget, choose, without_system


class RowChoice(NamedTuple):
    """Selected rows of a request.

    rows    [R] context rows to recompute; None: none are
    scores  [T] scores that they were selected by
    copy    contiguous copy of the pages, if the selection or the computation of the rows needs one
    logits  [V] after the prompt, if rows and question were already computed on the copy
    """

    rows: Tensor | None
    scores: Tensor | None = None
    copy: KV | None = None
    logits: Tensor | None = None


def chosen_over_pages(
    runner: Runner,
    method: Reuse,
    prompts: Sequence[Prompt],
    contexts: Sequence[Sequence[Cached]],
    room: Callable[[int], object] = bool,
    wait: Callable[[int], None] | None = None,
    copies: bool = False,
) -> list[RowChoice]:
    """Select context rows by the scores of the method's selector, which reads blocks in their pages.

    Question-guided selectors use a captured step; others that read keys and values get a copy. `room(pages)` makes room
    for a question; `wait(layer)` returns when a layer of the blocks is loaded. `copies`: gather the copies on which
    rows are computed here, so that a GPU fills them during the selection, and start to compute the rows of a single
    request.
    """
    select, pool = method.select, runner.pool
    assert select is not None
    pairs = zip(prompts, contexts, strict=True)
    sources = [(context, len(prompt.question), method.positions) for prompt, context in pairs]
    made: dict[int, _Copy] = {}
    ahead: DeviceRows | None = None

    def make(number: int) -> None:
        nonlocal ahead
        if copies and _on_copy(method, prompts[number]):
            copy = made[number] = made.get(number) or _Copy(*pool.gathering(*sources[number]))
            if len(prompts) == 1 and not (method.attend or method.sparse or method.chunk):
                ahead = _ahead(runner, method, prompts[number], copy)

    if isinstance(select, QuestionGuided) and select.softmax != "prompt" and method.positions != "naive":
        scores = []
        for number, (prompt, context) in enumerate(zip(prompts, contexts, strict=True)):
            question = prompt.tokens[prompt.question]
            room(-(-len(question) // pool.size))
            how = (select.layers, select.last, wait, select.softmax, select.system, partial(make, number))
            scores.append(from_question(runner, context, question, *how))
    else:
        if select.reads_cache:
            if wait is not None:
                for layer in range(len(pool.keys)):
                    wait(layer)
            made.update((number, _Copy(pool.gather(*one))) for number, one in enumerate(sources))
        read = [copy.kv for copy in made.values()]
        for number in range(len(prompts)):
            make(number)
        scores = list(select.scores(runner.model, prompts, read))
    arriving = [fetched(score) for score in scores]
    begun = None if ahead is None else _begin(method, prompts[0], scores[0], ahead)
    chosen = []
    for number, (score, prompt) in enumerate(zip(arriving, prompts, strict=True)):
        kv = None if number not in made else made[number].kv if begun else made[number].filled()
        known = without_system(score().float(), prompt, select.system)
        rows = choose(known, prompt, method.ratio, system=select.system)
        if begun is None:
            chosen.append(RowChoice(rows, known, kv))
        elif torch.equal(rows, begun.rows()):
            chosen.append(RowChoice(rows, known, kv, begun.logits))
        else:  # other rows were written to the copy
            chosen.append(RowChoice(rows, known))
    return chosen


@dataclass(frozen=True)
class _Copy:
    """A contiguous copy of a prompt's pages; `fill` fills one layer (None: it is complete)."""

    kv: KV
    fill: Callable[[int], None] | None = None

    def filled(self) -> KV:
        if self.fill is not None:
            for layer in range(len(self.kv.keys)):
                self.fill(layer)
        return self.kv


class _StartedRows(NamedTuple):
    """Rows that the device selected, available on the host later, and the logits [V] that it computes with them."""

    rows: Callable[[], Tensor]
    logits: Tensor


def _ahead(runner: Runner, method: Reuse, prompt: Prompt, copy: _Copy) -> DeviceRows:
    """Set up the computation of rows and question on a copy, before the rows are known."""
    assert method.select is not None and method.ratio is not None
    count = budget(prompt, method.ratio, method.select.system) + len(prompt.question)
    return DeviceRows(runner.model, prompt.tokens, count, copy.kv, copy.fill)


def _begin(method: Reuse, prompt: Prompt, scores: Tensor, ahead: DeviceRows) -> _StartedRows:
    """Select rows on the device as `choose` does, and start to compute them."""
    assert method.select is not None
    known = without_system(scores.to(ahead.rows.device).float(), prompt, method.select.system)
    count = len(ahead.rows) - len(prompt.question)
    rows = known.sort(descending=True, stable=True).indices[:count].sort().values
    arriving = fetched(rows)
    return _StartedRows(arriving, ahead.compute(rows))


def _on_copy(method: Reuse, prompt: Prompt) -> bool:
    """Return whether rows will be computed on a copy, which is decided before they are selected."""
    if method.correct or method.ratio is None or method.select is None:
        return False
    return budget(prompt, method.ratio, method.select.system) + len(prompt.question) > LARGE
