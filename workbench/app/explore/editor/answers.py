"""A prompt answered by full attention and by a chosen method, stage by stage, and again after every change.

Blocks stay cached between changes, so only what changed is encoded; the answer of full attention is kept by prompt,
the scores of a selector by prompt and preparation.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from workbench.app.explore.editor import heat
from workbench.app.explore.editor.choices import Wanted
from workbench.app.explore.editor.cost_breakdown import bill
from workbench.app.explore.editor.text import PromptReader
from workbench.core.blocks import Prompt
from workbench.core.errors import BadInput
from workbench.core.kv import KV
from workbench.core.tiling.tiles import Tiles
from workbench.engine.assembly import assemble
from workbench.engine.decoding import decode, text_of
from workbench.engine.forward import PrefillOutput, PrefillRequest, all_rows, prefill_many
from workbench.methods.modes.reuse import Reuse
from workbench.methods.request_report import WatchedStore
from workbench.methods.select import choose
from workbench.metrics import cost
from workbench.metrics.answers import exact_match
from workbench.metrics.kv.kv_deviation import squared
from workbench.models.loading import Loaded
from workbench.store import MemoryStore

KEPT, SHOWN = 6, 6  # prompts whose full attention is kept; tokens of a distribution that are shown
STORED = 1 << 30  # bytes of cached blocks
Stage = tuple[str, dict[str, Any]]  # name of what is known now, and its values
Alive = Callable[[], None]  # raises where the answer is no longer wanted


@dataclass
class PromptAnswer:
    """An answer under way: `text` grows while it is decoded."""

    logits: Tensor  # [V] fp32 behind the prompt
    kv: KV
    seconds: float  # to the first token
    attention: Tensor  # [L, T] from the question
    text: str = ""
    done: bool = False


@dataclass
class Answers:
    """Both answers to one prompt: of the chosen method, and of full attention once it is there."""

    prompt: Prompt
    expected: Sequence[str]
    method: PromptAnswer
    full: PromptAnswer | None = None


class PromptAnswers:
    """Answers changing prompts with one model."""

    def __init__(self, loaded: Loaded, reader: PromptReader, expected: Sequence[str] = (), max_new_tokens: int = 24):
        self.loaded, self.reader, self.expected, self.max_new_tokens = loaded, reader, tuple(expected), max_new_tokens
        self._asked: str | None = None  # the first question
        self.store = MemoryStore(STORED)
        self.shape = cost.shape_of(loaded.model)
        self._kept: dict[str, OrderedDict[Hashable, Any]] = {"full": OrderedDict(), "scores": OrderedDict()}

    def stages(self, wanted: Wanted, alive: Alive = lambda: None) -> Iterator[Stage]:
        """Answer a prompt: yields ("text" | "bill" | "answers" | "heat", values), the newest known each time.

        The values are plain JSON, but for the `Prompt` in "text". The chosen method's first token comes
        first, then that of full attention; then both are decoded. `alive` is called between stages and before every
        layer of a forward pass. Raises BadInput where the prompt does not fit the model.
        """
        prompt = self.reader.prompt(wanted.pieces)
        context = self.loaded.spec.context
        if context and len(prompt) >= context:
            raise BadInput(f"the prompt has {len(prompt):,} tokens: the model's context is {context:,}")
        yield "text", self._text(wanted, prompt)
        alive()
        method = wanted.method(len(prompt))
        watched = WatchedStore(self.store)
        begin = perf_counter()
        cached = method.prepare(self.loaded.model, [prompt], watched)[0]
        kv = assemble(self.loaded.model, prompt, cached, method.positions, self._reserve(prompt))
        placed = perf_counter() - begin
        alive()
        scores, choosing = self._scores(wanted, method, prompt, kv)
        rows = choose(scores, prompt, method.ratio, system=wanted.system) if scores is not None else torch.tensor([])
        ready = method.start(self.loaded.model, prompt, kv, torch.cat((rows.long(), prompt.question)))
        mine, tiles = self._prefill(prompt, ready.request, alive)
        mine.seconds += placed + choosing
        answers = Answers(prompt, self._expected(wanted), mine)
        yield "bill", bill(prompt, ready, watched, method, mine.seconds, self.shape)
        yield "answers", self._answers(answers)
        answers.full = self._full(prompt, alive)
        yield "answers", self._answers(answers)
        alive()
        yield "heat", self._heat(answers, wanted, cached, method, scores, rows, tiles)
        yield from self._spoken(answers, alive)

    def _expected(self, wanted: Wanted) -> tuple[str, ...]:
        """Return what is expected of the question that came with the prompt; nothing of one that was edited."""
        question = wanted.pieces[-1].text
        self._asked = question if self._asked is None else self._asked
        return self.expected if question == self._asked else ()

    def warm_up(self, wanted: Wanted) -> None:
        """Answer once and keep the cached blocks only."""
        for _ in self.stages(wanted):
            pass
        for kept in self._kept.values():
            kept.clear()

    def _reserve(self, prompt: Prompt) -> int:
        context = self.loaded.spec.context
        return min(self.max_new_tokens, context - len(prompt)) if context else self.max_new_tokens

    def _keep(self, kind: str, key: Hashable, make: Callable[[], Any]) -> Any:
        """Return what was made for `key`, the newest KEPT of a kind."""
        kept = self._kept[kind]
        if key not in kept:
            kept[key] = make()
            while len(kept) > KEPT:
                kept.popitem(last=False)
        kept.move_to_end(key)
        return kept[key]

    def _text(self, wanted: Wanted, prompt: Prompt) -> dict[str, Any]:
        blocks = [
            {"id": piece.id, "kind": piece.kind, "text": piece.text, "start": start, "tokens": self.reader.texts(block)}
            for piece, start, block in zip(wanted.pieces, prompt.starts, prompt.blocks, strict=True)
        ]
        return {"blocks": blocks, "length": len(prompt), "prompt": prompt}

    def _scores(self, wanted: Wanted, method: Reuse, prompt: Prompt, kv: KV) -> tuple[Tensor | None, float]:
        """Return the scores [T of the context] of the method's selector, and the seconds that making them took."""
        select = method.select
        if select is None:
            return None, 0.0

        def make() -> tuple[Tensor, float]:
            begin = perf_counter()
            scores = select(self.loaded.model, prompt, kv)
            return scores, perf_counter() - begin

        key = (_tokens(prompt), wanted.prepare, wanted.positions, wanted.select)
        return self._keep("scores", key, make)

    def _prefill(self, prompt: Prompt, request: PrefillRequest, alive: Alive) -> tuple[PromptAnswer, dict[int, Tiles]]:
        """Run the last forward pass of a request: its answer without text, and the tiles it attended to, by layer."""
        model, layers = self.loaded.model, tuple(range(self.loaded.spec.layers))
        recorded = heat.Recorded(request.plan.sparse) if request.plan.sparse else None
        plan = replace(request.plan, sparse=recorded, return_queries=layers)
        begin = perf_counter()
        (output,) = prefill_many(model, [PrefillRequest(request.tokens, plan, request.kv)], 1, [lambda _: alive()])
        seconds = perf_counter() - begin
        return self._answer(prompt, output, request.kv, seconds), recorded.tiles if recorded else {}

    def _answer(self, prompt: Prompt, output: PrefillOutput, kv: KV, seconds: float) -> PromptAnswer:
        assert output.logits is not None
        attention = heat.from_question(self.loaded.model, output.queries, kv, prompt)
        logits = output.logits[-1].float().cpu()
        return PromptAnswer(logits, kv, seconds, attention, self._begun(logits))

    def _full(self, prompt: Prompt, alive: Alive) -> PromptAnswer:
        request = all_rows(self.loaded.model, prompt.tokens, self._reserve(prompt))
        return self._keep("full", _tokens(prompt), lambda: self._prefill(prompt, request, alive)[0])

    def _spoken(self, answers: Answers, alive: Alive) -> Iterator[Stage]:
        """Decode the answers that are not there yet, in one batch; yields both after every token."""
        tokenizer, stop = self.loaded.tokenizer, self.loaded.layout.stop
        assert answers.full is not None
        waiting = [one for one in (answers.method, answers.full) if not one.done]
        reserve = self._reserve(answers.prompt)
        kvs = [one.kv if one is answers.method else one.kv.clone(reserve) for one in waiting]
        said: list[list[int]] = [[] for _ in waiting]
        logits = [one.logits for one in waiting]
        for step in decode(self.loaded.model, kvs, logits, self.max_new_tokens, stop=stop, tokenizer=tokenizer):
            alive()
            for one, tokens, token in zip(waiting, said, step, strict=True):
                if token is not None:
                    tokens.append(token)
                    one.text = text_of(tokenizer, tokens, stop).strip()
            yield "answers", self._answers(answers)
        for one in waiting:
            one.done = True
        yield "answers", self._answers(answers)

    def _begun(self, logits: Tensor) -> str:
        """Return the first token of an answer as text: it needs no forward pass."""
        tokenizer, stop = self.loaded.tokenizer, self.loaded.layout.stop
        kv = self.loaded.spec.empty(1, 0)
        stream = decode(self.loaded.model, [kv], [logits], 1, stop=stop, tokenizer=tokenizer)
        return text_of(tokenizer, [token for (token,) in stream if token is not None], stop).strip()

    def _answers(self, answers: Answers) -> dict[str, Any]:
        """Return both answers as far as they are, their first-token distributions and how far apart these are."""
        listed = {"method": answers.method, "full": answers.full}
        logs = {name: one.logits.log_softmax(-1) for name, one in listed.items() if one is not None}
        shown = dict.fromkeys(
            token for log in logs.values() for token in log.topk(min(SHOWN, len(log))).indices.tolist()
        )
        order = sorted(shown, key=lambda token: -max(float(log[token]) for log in logs.values()))[:SHOWN]
        first = [
            {"token": self.reader.token(token), **{name: float(log[token].exp()) for name, log in logs.items()}}
            for token in order
        ]
        said: dict[str, Any] = {"first": first, "kl": None, "agree": None, "expected": list(answers.expected)}
        for name, one in listed.items():
            right = bool(exact_match(one.text, answers.expected)) if one and one.done and answers.expected else None
            said[name] = {"text": one.text, "done": one.done, "right": right} if one else None
        if "full" in logs:
            full, method = logs["full"], logs["method"]
            said["kl"] = max(0.0, float((full.exp() * (full - method)).sum()))
            said["agree"] = int(full.argmax()) == int(method.argmax())
            said["seconds_full"] = answers.full.seconds if answers.full else None
        return said

    def _heat(
        self,
        answers: Answers,
        wanted: Wanted,
        cached: Sequence[KV],
        method: Reuse,
        scores: Tensor | None,
        rows: Tensor,
        tiles: dict[int, Tiles],
    ) -> dict[str, Any]:
        assert answers.full is not None
        prompt, layers, length = answers.prompt, self.loaded.spec.layers, len(answers.prompt)
        truth = _first(answers.full.kv, length)
        before = squared(assemble(self.loaded.model, prompt, cached, method.positions), truth)
        before[prompt.starts[-1] :] = 0  # the question is not cached
        drawn = heat.tile_map(tiles, layers)
        return {
            "deviation": heat.deviation(before),
            "left": heat.deviation(squared(_first(answers.method.kv, length), truth)),
            "attention_full": heat.painted(answers.full.attention, clip=0.99),
            "attention": heat.painted(answers.method.attention, clip=0.99),
            "score": None if scores is None else heat.floats(scores),
            "tiles": heat.painted(heat.kept_tokens(tiles, layers, length)) if tiles else None,
            "tile_map": heat.painted(drawn) if drawn is not None else None,
            "chosen": rows.long().tolist(),
            "layers": layers,
            "length": length,
            "system": prompt.starts[1] if wanted.system and wanted.prepare == "after_system" else 0,
        }


def _tokens(prompt: Prompt) -> tuple[int, ...]:
    return tuple(prompt.tokens.tolist())


def _first(kv: KV, length: int) -> KV:
    """Return the prompt's part of a KV that has grown with an answer."""
    return KV([x[:, :length] for x in kv.keys], [x[:, :length] for x in kv.values], kv.start)
