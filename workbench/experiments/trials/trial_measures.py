"""Measurements of a trial besides its answers: requests to time, receipts, costs, and references of full attention.

References are cached per model on the CPU, up to `cache_bytes()` bytes; others are recomputed in every trial.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from transformers import PreTrainedModel

from workbench.core.blocks import Prompt
from workbench.core.errors import BadInput
from workbench.core.utils.stages import stage
from workbench.data import Sample
from workbench.methods import Method, registry
from workbench.methods.answered import Answered, Generation
from workbench.methods.generation import first_token
from workbench.methods.modes.full import Full
from workbench.methods.modes.reuse import Reuse
from workbench.metrics import answers, cost, fidelity
from workbench.metrics.answers import Records
from workbench.metrics.fidelity import Reference
from workbench.metrics.latency import Quantiles
from workbench.metrics.quality import Quality, summary
from workbench.models.loading import Loaded
from workbench.store import UNLIMITED, MemoryStore, Store, fingerprint

OF_ANSWER = {"em": answers.exact_match, "f1": answers.f1, "contains": answers.contains}


def row(sample: Sample, answer: str, compared: dict[str, Any] | None) -> dict[str, Any]:
    """Return the row of a question and its answer; `compared` is its row of `fidelity.compare`."""
    expected = sample.answers[0] if sample.answers else None
    about = {"id": sample.id, "kind": sample.kind, "asked": sample.question, "answer": answer, "expected": expected}
    return about | scores(answer, sample.answers) | (compared or {})


def scores(answer: str, aliases: Sequence[str], before: str = "") -> dict[str, float | None]:
    """Return the scores of one answer by name, prefixed with `before`; None without gold answers."""
    return {before + name: of(answer, aliases) if aliases else None for name, of in OF_ANSWER.items()}


def quality(rows: Records, samples: Sequence[Sample], seed: int) -> dict[str, Any]:
    """Return the fields of `Quality` for some questions and their rows."""
    scored = answers.score([row["answer"] for row in rows], [sample.answers for sample in samples], seed)
    return asdict(scored) | (summary(rows, seed) if "kl" in rows[0] else {})


def by_kind(rows: Records, samples: Sequence[Sample], seed: int) -> dict[str, Quality]:
    """Return the scores of each kind of question."""
    of_kind: dict[str, list[int]] = {}
    for i, row in enumerate(rows):
        of_kind.setdefault(row["kind"], []).append(i)
    return {
        kind: Quality(**quality([rows[i] for i in at], [samples[i] for i in at], seed))
        for kind, at in sorted(of_kind.items())
    }


BYTES = 1 << 29  # minimum cache size
SHARE = 8  # references may take 1 / SHARE of free memory

_KEPT: WeakKeyDictionary[PreTrainedModel, "ReferenceCache"] = WeakKeyDictionary()


def cache_bytes() -> int:
    """Return how many bytes of references a process caches: 500 questions with a large vocabulary take some GB."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0
    return max(BYTES, free // SHARE)


class ReferenceCache:
    """References of one state of a model's weights, by batch: prompts, gold answers, maximum answer length.

    `times` are full attention's times to first token, by prompts and engine.
    """

    def __init__(self, fingerprint: str):
        self.fingerprint = fingerprint
        self.bytes, self.room = 0, cache_bytes()
        self.times: dict[object, Quantiles] = {}
        self.references: dict[object, Reference] = {}

    def add_reference(self, key: object, one: Reference) -> None:
        """Cache a reference if it fits. Nothing is evicted, because every trial uses references in the same order."""
        if key not in self.references and self.bytes + one.nbytes <= self.room:
            self.references[key] = replace(one, logits=one.logits.cpu().clone())
            self.bytes += one.nbytes


def cache_of(model: PreTrainedModel) -> ReferenceCache:
    """Return the cache of a model in its current state."""
    state = f"{fingerprint(model)} {model.dtype} {model.device}"
    if model not in _KEPT or _KEPT[model].fingerprint != state:
        _KEPT[model] = ReferenceCache(state)
    return _KEPT[model]


def content_of(prompts: Sequence[Prompt]) -> object:
    """Return a key that distinguishes prompts."""
    return tuple(tuple(block.content for block in prompt.blocks) for prompt in prompts)


class FidelityWatch:
    """Compares the batches that a trial answers with full attention.

    rows      what `fidelity.compare` returns for each question, and full attention's scores: full_em, full_f1, …
    full      seconds of full attention to its first token, for prompts that it computed alone
    seconds   time spent here, which is not the method's
    """

    def __init__(
        self, loaded: Loaded, samples: Sequence[Sample], prompts: Sequence[Prompt], method: Method, max_new_tokens: int
    ):
        self.loaded, self.samples, self.prompts, self.method = loaded, samples, prompts, method
        self.max_new_tokens = max_new_tokens
        self.gold = fidelity.gold_answers(samples, loaded.layout, loaded.tokenizer)
        self.kept = cache_of(loaded.model)
        self.known: list[Reference] = []  # references of the next batch
        self.rows: Records = []
        self.full: list[float] = []
        self.seconds = 0.0

    def expect(self, batch: Sequence[int], progress: Callable[[int, int], None]) -> None:
        """On a CPU, run full attention on a batch first: its pace shows how long the trial takes."""
        if self.method != Full() and self.loaded.model.device.type == "cpu":
            stage("full attention")
            begin = time.perf_counter()
            self.known = self._known(batch, progress=progress)
            self.seconds += time.perf_counter() - begin

    def __call__(self, batch: Sequence[int], answered: Answered) -> None:
        """Compare the answers to a batch of question indices; overwrites the KV after the prompts."""
        begin = time.perf_counter()
        known = self.known or self._known(batch, answered)
        self.known = []
        rows = fidelity.compared(fidelity.predictor(self.loaded.model, answered), known)
        for i, one, row in zip(batch, known, rows, strict=True):
            self.rows.append({**row, **scores(one.text, self.samples[i].answers, "full_")})
            self.full += [] if one.seconds is None else [one.seconds]
        self.seconds += time.perf_counter() - begin

    def _known(
        self, batch: Sequence[int], answered: Answered | None = None, progress: Callable[[int, int], None] | None = None
    ) -> list[Reference]:
        """Return the references of a batch: either all from the cache, or all computed now.

        They are cached per batch, not per question: a different batch rounds differently, and records would depend on
        what the process computed before.
        """
        model, tokenizer, layout = self.loaded
        gold, options = [self.gold[i] for i in batch], (self.max_new_tokens, layout.stop)
        batch_key = content_of([self.prompts[i] for i in batch]), tuple(gold), options
        keys = [(batch_key, place) for place in range(len(batch))]
        if all(key in self.kept.references for key in keys):
            return [self.kept.references[key] for key in keys]
        if answered is not None and self.method == Full():  # the method itself is full attention
            found = fidelity.references(model, tokenizer, answered, gold, *options)
        else:
            found = fidelity.reference(model, tokenizer, [self.prompts[i] for i in batch], gold, *options, progress)
        for key, one in zip(keys, found, strict=True):
            self.kept.add_reference(key, one)
        return found


def first_tokens(
    model: PreTrainedModel, prompts: Sequence[Prompt], method: Method, engine: str, kept: Store | None = None
) -> Iterator[Callable[[], int]]:
    """Yield one job per prompt: from its token ids to its first new token, with its cached blocks already in a store.

    Blocks are taken from `kept` if it has them, before the job, instead of being encoded again.
    """
    for number, prompt in enumerate(prompts, 1):
        stage(f"timing the first token, {number} of {len(prompts)}")
        store = MemoryStore(UNLIMITED, behind=kept)
        if isinstance(method, Reuse):
            method.prepare(model, method.with_soft_tokens(model, [prompt]), store)
        else:
            method.begin(model, [prompt], store)
        yield partial(first_token, model, prompt, method, store, engine)


def receipts(samples: Sequence[Sample], generations: Sequence[Generation]) -> list[dict[str, Any]]:
    """Return {id, at, receipt} of each request.

    `at`: seconds until its batch started, without the work between batches.
    """
    rows: list[dict[str, Any]] = []
    at = until = 0.0
    next_batch = 0  # its first request
    for number, (sample, generation) in enumerate(zip(samples, generations, strict=True)):
        receipt = generation.receipt
        assert receipt is not None
        if number == next_batch:
            at, next_batch = until, number + receipt.batch
            until = at + sum(receipt.seconds.values())
        rows.append({"id": sample.id, "at": at, "receipt": receipt.to_json()})
    return rows


def costs(model: PreTrainedModel, prompts: Sequence[Prompt], generations: Sequence[Generation]) -> dict[str, Any]:
    """Return the fields of `Record` on rows, FLOPs, bytes, preprocessing and parameters."""
    shape, layers = cost.shape_of(model), model.config.get_text_config().num_hidden_layers
    costs = [cost.of_passes(shape, one.passes, one.rows_reused, model.dtype.itemsize) for one in generations]
    means = {name: mean([getattr(one, name) for one in generations]) for name in ("rows_computed", "rows_reused")}
    means |= {name: mean([getattr(one, name) for one in costs]) for name in ("flops", "bytes")}
    means |= {f"flops_{name}": mean([getattr(one, name) for one in costs]) for name in ("linear", "attention")}
    means["rows_charged"] = mean([cost.rows_charged(one.passes, layers) for one in generations])
    shares = [cost.charged_share(one.passes, layers, len(p)) for one, p in zip(generations, prompts, strict=True)]
    means["charged_share"] = mean(shares)
    about = {"parameters": shape.stored, "preprocess_ms": _preprocess_ms(generations)}
    return means | about | {"bytes_loaded": mean([one.kv_loaded for one in costs])}


def in_full(method: Method, prompts: Sequence[Prompt], generations: Sequence[Generation]) -> str:
    """Return a note that a correction computed every prompt in full, and why; "" if it reused some or has no reason."""
    correction = getattr(method, "correct", None)
    why = getattr(correction, "IN_FULL", "")
    if not why or any(one.rows_computed < len(prompt) for one, prompt in zip(generations, prompts, strict=True)):
        return ""
    return f"{registry.parse(registry.spec_of(correction))[0]} computed every prompt in full: {why}."


def _preprocess_ms(generations: Sequence[Generation]) -> float | None:
    """Return the encoding time in ms per token of passages missing in the store; None if none was missing."""
    known = [one.receipt for one in generations if one.receipt is not None]
    tokens = sum(block.tokens for one in known for block in one.blocks if block.status == "encoded")
    seconds = sum(one.seconds.get("encode", 0.0) / one.batch for one in known)
    return seconds * 1e3 / tokens if tokens else None


def mean(values: Sequence[float]) -> float:
    """Return the mean; nan without values."""
    return float(np.mean(values))


def check_context(context: int | None, samples: Sequence[Sample], prompts: Sequence[Prompt]) -> None:
    """Raise BadInput if the longest prompt leaves a model of `context` tokens no room for an answer."""
    longest = max(range(len(prompts)), key=lambda i: len(prompts[i]))
    if context and len(prompts[longest]) >= context:
        raise BadInput(
            f"the prompt of sample {samples[longest].id!r} has {len(prompts[longest])} tokens, "
            f"the model's context is {context}, answer included: ask for fewer passages"
        )
