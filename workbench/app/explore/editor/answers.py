"""Answer a prompt by full attention and by a chosen method, in stages, again after every edit.

Blocks stay cached between edits, so only changed blocks are encoded. Answers of full attention are cached by prompt,
selector scores by prompt and preprocessing.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from workbench.app.explore.editor import heat
from workbench.app.explore.editor.answer_values import (
    Answers,
    MethodRun,
    PromptAnswer,
    answer_values,
    bill,
    by_token,
    costs_and_answers,
)
from workbench.app.explore.editor.choices import MOST_COLUMNS, EditorRequest
from workbench.app.explore.editor.text import PromptReader
from workbench.core.blocks import Prompt
from workbench.core.errors import BadInput
from workbench.core.kv import KV
from workbench.engine import attention_maps
from workbench.engine.assembly import assemble
from workbench.engine.decoding import decode, text_of
from workbench.engine.forward import PrefillRequest, all_rows, prefill_many
from workbench.methods.modes.reuse import Reuse
from workbench.methods.request_report import WatchedStore
from workbench.methods.select import choose
from workbench.metrics import cost
from workbench.models.loading import Loaded
from workbench.store import MemoryStore

KEPT = 6  # prompts whose full-attention answer is cached
STORED = 1 << 30  # bytes of cached blocks
LOOKED = 1 << 27  # bytes of queries kept to show attention from any token
TURNS, SHORT = 3, 0.1  # how often each column is timed again; seconds below which one timing is too noisy
Stage = tuple[str, dict[str, Any]]  # name and values of what was just computed
Alive = Callable[[], None]  # raises if the answer is no longer needed


class PromptAnswers:
    """Answers changing prompts with one model."""

    def __init__(self, loaded: Loaded, reader: PromptReader, expected: Sequence[str] = (), max_new_tokens: int = 24):
        self.loaded, self.reader, self.expected, self.max_new_tokens = loaded, reader, tuple(expected), max_new_tokens
        self._asked: str | None = None  # the first question
        self.store = MemoryStore(STORED)
        self.shape = cost.shape_of(loaded.model)
        self._kept: dict[str, OrderedDict[Hashable, Any]] = {name: OrderedDict() for name in ("full", "scores", "runs")}
        self._last: Answers | None = None

    def with_empty_caches(self) -> "PromptAnswers":
        """Return a new object for the same prompts, with empty caches."""
        return PromptAnswers(self.loaded, self.reader, self.expected, self.max_new_tokens)

    def stages(self, wanted: EditorRequest, alive: Alive = lambda: None, cold: bool = False) -> Iterator[Stage]:
        """Answer a prompt; yield ("text" | "bill" | "answers" | "heat", values) as they become known.

        Values are JSON, except the `Prompt` in "text". First tokens come first: the chosen method's, full attention's,
        then those of compared methods that have not answered this prompt yet. Then all answers are decoded. With `cold`
        each method runs once before, so that the result shown reuses cached blocks. `alive` is called between stages
        and before every layer of a forward pass. Raises BadInput if the prompt does not fit the model.
        """
        prompt = self.reader.prompt(wanted.pieces)
        context = self.loaded.spec.context
        if context and len(prompt) >= context:
            raise BadInput(f"the prompt has {len(prompt):,} tokens: the model's context is {context:,}")
        yield "text", self.reader.describe_prompt(wanted.pieces, prompt) | {"prompt": prompt}
        columns = wanted.columns
        for column in columns if cold else ():
            self._run(column, prompt, alive)
        mine = self._run(wanted, prompt, alive)
        known = [self._kept["runs"].get(_key(prompt, column)) for column in columns[1:]]
        answers = Answers(prompt, self._expected(wanted), [mine, *known])
        answers.timed_apart = _tokens(prompt) in self._kept["full"] or any(known)
        yield from costs_and_answers(answers, self.reader)
        answers.full = self._keep("full", _tokens(prompt), lambda: self._full(prompt, alive))
        yield "answers", answer_values(answers, self.reader)
        alive()
        self._last = answers
        yield "heat", by_token(answers, self.loaded)
        for at, column in enumerate(columns):
            if answers.runs[at] is None:
                answers.runs[at] = self._run(column, prompt, alive)
                yield from costs_and_answers(answers, self.reader)
        yield from self._decoded(answers, alive)
        self._remember(answers)

    def timed_again(self, alive: Alive = lambda: None) -> Iterator[Stage]:
        """Time the columns of the last answer again in turns, if some were timed earlier, or all are short.

        Yields ("bill" | "answers", values) with each column's median time. Columns that encoded blocks keep theirs.
        """
        answers = self._last
        if not (answers and answers.full and (answers.timed_apart or answers.full.seconds < SHORT)):
            return
        runs = [run for run in answers.runs if run and not run.bill["flops"]["encoding"]]
        times = []
        for _ in range(TURNS):
            self._kept["scores"].clear()  # selection is part of the time
            full = {"method": self._full(answers.prompt, alive).seconds}
            times.append([full, *(self._run(run.wanted, answers.prompt, alive).bill["seconds"] for run in runs)])
        best, *others = (sorted(took, key=lambda one: one["method"])[TURNS // 2] for took in zip(*times, strict=True))
        answers.full.seconds = best["method"]
        for run, took in zip(runs, others, strict=True):
            run.bill = {**run.bill, "seconds": took}
        self._remember(answers)
        yield from costs_and_answers(answers, self.reader)

    def attention_from(self, token: int, layer: int) -> dict[str, Any] | None:
        """Return the attention from a token, per head: {heads: [H, T] painted}; None if unknown.

        By the chosen method if it computed the token, else by full attention.
        """
        if (answers := self._last) is None or answers.full is None:
            return None
        for one in (answers.method.answer, answers.full):
            at = (one.rows == token).nonzero().flatten()
            if len(at) and layer in one.queries:
                asked, keys = one.queries[layer][:, at], one.kv.keys[layer][:, : len(answers.prompt)]
                ((_, logits),) = attention_maps.logits(self.loaded.model, layer, asked, keys, one.rows[at])
                return {"heads": heat.encode_heatmap(attention_maps.softmax(logits)[:, 0])}
        return None

    def _expected(self, wanted: EditorRequest) -> tuple[str, ...]:
        """Return the expected answers of the prompt's original question; () if it was edited."""
        question = wanted.pieces[-1].text
        self._asked = question if self._asked is None else self._asked
        return self.expected if question == self._asked else ()

    def warm_up(self, wanted: EditorRequest, alive: Alive = lambda: None) -> None:
        """Answer once, and keep only the cached blocks; `alive` as of `stages`."""
        for _ in self.stages(wanted, alive):
            pass
        for kept in self._kept.values():
            kept.clear()

    def _reserve(self, prompt: Prompt) -> int:
        context = self.loaded.spec.context
        return min(self.max_new_tokens, context - len(prompt)) if context else self.max_new_tokens

    def _keep(self, kind: str, key: Hashable, make: Callable[[], Any]) -> Any:
        """Return the cached value of `key`, or make it; the newest KEPT of a kind stay."""
        kept = self._kept[kind]
        if key not in kept:
            kept[key] = make()
            while len(kept) > KEPT:
                kept.popitem(last=False)
        kept.move_to_end(key)
        return kept[key]

    def _remember(self, answers: Answers) -> None:
        """Keep the results of a run that columns show, without tensors."""
        kept, empty = self._kept["runs"], self.loaded.spec.empty(1, 0)
        for run in filter(None, answers.runs):
            key = _key(answers.prompt, run.wanted)
            kept[key] = run.light(empty)
            kept.move_to_end(key)
        while len(kept) > MOST_COLUMNS:
            kept.popitem(last=False)

    def _run(self, wanted: EditorRequest, prompt: Prompt, alive: Alive) -> MethodRun:
        """Assemble cached blocks, encode missing ones, and compute the first token by the method."""
        alive()
        method, model, watched = wanted.method(len(prompt)), self.loaded.model, WatchedStore(self.store)
        begin = perf_counter()
        cached = method.prepare(model, [prompt], watched)[0]
        kv = assemble(model, prompt, cached, method.positions, self._reserve(prompt))
        placed = perf_counter() - begin
        alive()
        scores, choosing = self._scores(wanted, method, prompt, kv)
        rows = choose(scores, prompt, method.ratio, system=wanted.system) if scores is not None else torch.tensor([])
        ready = method.start(model, prompt, kv, torch.cat((rows.long(), prompt.question)))
        answer, recorded = self._prefill(prompt, ready.request, alive)
        answer.seconds += placed + choosing
        took = bill(prompt, ready, watched, method, answer.seconds, self.shape, recorded)
        tiles = recorded.tiles if recorded else {}
        return MethodRun(wanted, answer, took, method, cached, scores, rows.long(), tiles)

    def _scores(self, wanted: EditorRequest, method: Reuse, prompt: Prompt, kv: KV) -> tuple[Tensor | None, float]:
        """Return the selector's scores [T of the context] and the seconds that they took."""
        select = method.select
        if select is None:
            return None, 0.0

        def make() -> tuple[Tensor, float]:
            begin = perf_counter()
            scores = select(self.loaded.model, prompt, kv)
            return scores, perf_counter() - begin

        key = (_tokens(prompt), wanted.prepare, wanted.positions, wanted.select)
        return self._keep("scores", key, make)

    def _prefill(
        self, prompt: Prompt, request: PrefillRequest, alive: Alive
    ) -> tuple[PromptAnswer, heat.RecordingSparse | None]:
        """Run the last forward pass of a request; return its answer without text, and the selected tiles."""
        model, layers = self.loaded.model, tuple(range(self.loaded.spec.layers))
        recorded = heat.RecordingSparse(request.plan.sparse) if request.plan.sparse else None
        plan = replace(request.plan, sparse=recorded, return_queries=layers)
        begin = perf_counter()
        (output,) = prefill_many(model, [PrefillRequest(request.tokens, plan, request.kv)], 1, [lambda _: alive()])
        seconds = perf_counter() - begin
        assert output.logits is not None
        attention = heat.from_question(model, output.queries, request.kv, prompt)
        logits, rows = output.logits[-1].float().cpu(), request.plan.rows
        queries = output.queries if sum(q.nbytes for q in output.queries.values()) <= LOOKED else {}
        answer = PromptAnswer(logits, request.kv, seconds, attention, queries, rows, self._begun(logits))
        return answer, recorded

    def _full(self, prompt: Prompt, alive: Alive) -> PromptAnswer:
        request = all_rows(self.loaded.model, prompt.tokens, self._reserve(prompt))
        return self._prefill(prompt, request, alive)[0]

    def _decoded(self, answers: Answers, alive: Alive) -> Iterator[Stage]:
        """Decode the missing answers in one batch; yield all answers after every token."""
        tokenizer, stop = self.loaded.tokenizer, self.loaded.layout.stop
        assert answers.full is not None
        waiting = [one for one in (answers.full, *(run.answer for run in answers.runs if run)) if not one.done]
        reserve = self._reserve(answers.prompt)
        kvs = [one.kv.clone(reserve) if one is answers.full else one.kv for one in waiting]
        said: list[list[int]] = [[] for _ in waiting]
        logits = [one.logits for one in waiting]
        for step in decode(self.loaded.model, kvs, logits, self.max_new_tokens, stop=stop, tokenizer=tokenizer):
            alive()
            for one, tokens, token in zip(waiting, said, step, strict=True):
                if token is not None:
                    tokens.append(token)
                    one.text = text_of(tokenizer, tokens, stop).strip()
            yield "answers", answer_values(answers, self.reader)
        for one in waiting:
            one.done = True
        yield "answers", answer_values(answers, self.reader)

    def _begun(self, logits: Tensor) -> str:
        """Return the first token of an answer as text, which needs no forward pass."""
        tokenizer, stop = self.loaded.tokenizer, self.loaded.layout.stop
        kvs = [self.loaded.spec.empty(1, 0)]
        stream = decode(self.loaded.model, kvs, [logits], 1, stop=stop, tokenizer=tokenizer)
        return text_of(tokenizer, [token for (token,) in stream if token is not None], stop).strip()


def _key(prompt: Prompt, wanted: EditorRequest) -> Hashable:
    return _tokens(prompt), tuple(wanted.fields.items())


def _tokens(prompt: Prompt) -> tuple[int, ...]:
    return tuple(prompt.tokens.tolist())
