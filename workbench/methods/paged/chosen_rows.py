"""Selection of the context rows that a request recomputes, over its pages.

Where thousands of rows are recomputed, a GPU selects them itself and begins to compute them. The host selects rows by
the same scores meanwhile; should it select others, it discards what was computed.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from workbench.core.blocks import Prompt
from workbench.core.kv import KV
from workbench.core.utils.wide_copies import fetched, sent
from workbench.engine.device_rows import prefill_device_rows
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
    copy    contiguous copy of the pages, if one was made for the selection or for computing the rows
    logits  [V] behind the prompt, if rows and question were computed on the copy already
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
    for a question; `wait(layer)` returns when a layer of the blocks is loaded. `copies`: make the copies on which rows
    are computed here, so that a GPU fills them meanwhile, and begin to compute the rows of a single request.
    """
    select, pool = method.select, runner.pool
    assert select is not None
    pairs = zip(prompts, contexts, strict=True)
    asked = [(context, len(prompt.question), method.positions) for prompt, context in pairs]
    kvs: list[KV | None] = [None] * len(prompts)
    if isinstance(select, QuestionGuided) and select.softmax != "prompt" and method.positions != "naive":
        scores = []
        for prompt, context in zip(prompts, contexts, strict=True):
            question = prompt.tokens[prompt.question]
            room(-(-len(question) // pool.size))
            how = (select.layers, select.last, wait, select.softmax, select.system)
            scores.append(from_question(runner, context, question, *how))
    elif not select.reads_cache:
        scores = list(select.scores(runner.model, prompts, ()))
    else:
        if wait is not None:
            for layer in range(len(pool.keys)):
                wait(layer)
        read = [pool.gather(*one) for one in asked]
        scores = list(select.scores(runner.model, prompts, read))
        kvs = [*read]
    arriving = [fetched(score) for score in scores]
    for number, prompt in enumerate(prompts) if copies else ():
        if kvs[number] is None and _on_copy(method, prompt):
            kvs[number] = pool.gather(*asked[number])
    begun: _Begun | None = None
    if copies and len(prompts) == 1 and kvs[0] is not None and _on_device(method, prompts[0]):
        begun = _begin(runner, method, prompts[0], scores[0], kvs[0])
    chosen = []
    for score, prompt, kv in zip(arriving, prompts, kvs, strict=True):
        known = without_system(score().float(), prompt, select.system)
        rows = choose(known, prompt, method.ratio, system=select.system)
        if begun is None:
            chosen.append(RowChoice(rows, known, kv))
        elif torch.equal(rows, begun.rows()):
            chosen.append(RowChoice(rows, known, kv, begun.logits))
        else:  # the copy contains other rows
            chosen.append(RowChoice(rows, known))
    return chosen


class _Begun(NamedTuple):
    """Rows that the device selected, once they have arrived, and the logits [V] that it computes by them."""

    rows: Callable[[], Tensor]
    logits: Tensor


def _begin(runner: Runner, method: Reuse, prompt: Prompt, scores: Tensor, kv: KV) -> _Begun:
    """Select rows on the device as `choose` does, and begin to compute them and the question on a copy."""
    assert method.select is not None and method.ratio is not None
    where, system = runner.pool.device, method.select.system
    known = without_system(scores.to(where).float(), prompt, system)
    count = budget(prompt, method.ratio, system)
    rows = known.sort(descending=True, stable=True).indices[:count].sort().values
    arriving = fetched(rows)
    computed = torch.cat((rows, sent(prompt.question, where)))
    return _Begun(arriving, prefill_device_rows(runner.model, prompt.tokens, computed, kv))


def _on_device(method: Reuse, prompt: Prompt) -> bool:
    """Return whether the device may begin to compute rows before the host knows them: no choice is made by them."""
    return _on_copy(method, prompt) and not (method.attend or method.sparse or method.chunk)


def _on_copy(method: Reuse, prompt: Prompt) -> bool:
    """Return whether rows will be computed on a copy, which is decided before they are chosen."""
    if method.correct or method.ratio is None or method.select is None:
        return False
    return budget(prompt, method.ratio, method.select.system) + len(prompt.question) > LARGE
