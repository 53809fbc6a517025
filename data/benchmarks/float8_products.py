"""GEMMs in float8 against bfloat16: times of whole prompts, and the effect on predictions and answers.

    python data/benchmarks/float8_products.py                        128K, 32K and 8K tokens, blocks, and answers
    python data/benchmarks/float8_products.py --parts times --lengths 128 --chunked 128 --runs 20
    python data/benchmarks/float8_products.py --parts answers --model smollm2-reader --data runs/files/nq-held.jsonl

writes timings and counts of experiment "float8" into a results folder after every round. Times are of a random model of
Llama-3.1-8B's shape on a GPU: every round runs each candidate once, and no round starts after `--seconds`. `faster` is
the mean over rounds of the time in bfloat16 over that in float8; `cosine` compares the logits after the prompt,
`density` is BFLA's share of the causal tiles. Chunks have 1,024 tokens and are dense. A length of 0 skips a workload.
With `--recomputed`, 15% of 27K cached tokens are selected and recomputed too.

Answers are a model's to `--samples` questions, under full attention and with 15% recomputed (`query_guided`), in both
precisions. Both are compared with full attention in bfloat16, and with each other by question.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from script import mean_of, options, writer
from torch import Tensor
from torch.nn.functional import cosine_similarity

from workbench import data, models
from workbench.core.blocks import Block
from workbench.core.plan import Plan
from workbench.engine.assembly import empty
from workbench.engine.chunked import MANY, prefill_chunked
from workbench.engine.forward import PrefillRequest, all_rows, prefill_many
from workbench.engine.pages.paged_pool import Pool
from workbench.experiments.bench import timing
from workbench.experiments.bench.kernels.workloads import CountingSparse
from workbench.experiments.bench.models.operations import at_density
from workbench.experiments.bench.models.recompute import Online
from workbench.experiments.bench.models.whole_model import BLOCK, Candidate, Sample, Scene, clock, scene_of
from workbench.methods import Method
from workbench.methods.generation import answer
from workbench.methods.method import SamplingParams
from workbench.methods.modes.full import Full
from workbench.methods.modes.reuse import Reuse
from workbench.methods.select.answer_guided import AnswerGuided
from workbench.methods.select.query_guided import QueryGuided
from workbench.methods.sparse.bfla import Bfla
from workbench.metrics import answers, fidelity, paired
from workbench.models import float8
from workbench.store import UNLIMITED, MemoryStore

KINDS = ("bfloat16", "float8 products")
DTYPES = ("bfloat16", float8.NAME)
COMPARED = ("kl", "kl_first", "agree", "nll")


@dataclass
class Work:
    """One workload in one precision: what it computes, and the milliseconds of its runs."""

    workload: str
    candidate: str
    kind: str
    run: Callable[..., Tensor | None]
    warm: Callable[[], Any]  # before every run, untimed: weights are rounded at the first use
    sparse: Bfla | None = None
    density: float | None = None
    ms: list[float] = field(default_factory=list)
    logits: Tensor | None = None

    def once(self) -> None:
        """Run it, and keep its logits."""
        self.logits = self.run() if self.sparse is None else self.run(self.sparse)

    def count(self) -> None:
        """Run it once untimed, to compile kernels, and count kept tiles."""
        if self.sparse is None:
            self.once()
            return
        counted = CountingSparse(self.sparse)
        self.run(counted)
        self.density = counted.density


def within(scene: Scene, kind: str) -> AbstractContextManager[None]:
    """Use GEMMs of `kind` within the context."""
    return nullcontext() if kind == KINDS[0] else float8.float8_enabled(scene.model)


def whole(scene: Scene, tokens: int, sparse: Any = None) -> Tensor:
    """Prefill a prompt at once; return the logits [V] after it."""
    (out,) = prefill_many(scene.model, [all_rows(scene.model, scene.ids(tokens), sparse=sparse)], 1)
    assert out.logits is not None
    return out.logits[-1]


def chunks(scene: Scene, tokens: int) -> Tensor:
    """Prefill a prompt densely in chunks; return the logits [V] after it."""
    request = PrefillRequest(scene.ids(tokens), Plan(torch.arange(tokens)), empty(scene.model, tokens))
    logits = prefill_chunked(scene.model, request, scene.unit, 1).logits
    assert logits is not None
    return logits[-1]


def recomputed(prompt: Online, choice: QueryGuided | AnswerGuided) -> None:
    """Select 15% of a cached context's tokens, and compute them and the question."""
    prompt.in_place(choice)


def no_sample(candidate: Candidate) -> Sample:
    """Raise: times are taken in rounds here."""
    raise NotImplementedError


def works(scene: Scene, given: Any) -> Iterator[Work]:
    """Yield the workloads, each in both precisions; BFLA's mass is set for its density in bfloat16."""
    lengths, chunked, encoded = list(filter(None, given.lengths)), list(filter(None, given.chunked)), given.encoded
    warm = partial(whole, scene, 2 * scene.unit)
    for length in lengths:
        tokens, block = length * scene.unit, min(256, scene.unit)
        sparse = at_density(scene, tokens, Bfla(block=block, tile=block // 2, flat=block // 4))
        for name, method in (("BFLA", sparse), *([] if given.bfla_only else [("dense", None)])):
            for kind in KINDS:
                yield Work(f"{length}K at once", f"{name}, {kind}", kind, partial(whole, scene, tokens), warm, method)
    for length in chunked:
        run, some = partial(chunks, scene, length * scene.unit), partial(chunks, scene, MANY * scene.unit)
        for kind in KINDS:
            yield Work(f"{length}K in chunks", f"dense, {kind}", kind, run, some)  # captures a graph first
    if encoded:
        size = min(BLOCK, scene.unit)
        blocks = [Block(tuple(run.tolist())) for run in scene.ids(encoded * scene.unit).split(size)]
        pool = Pool(scene.model, 2 + len(blocks) * -(-size // 64))
        cached = pool.encode(scene.model, blocks)

        def encode() -> None:
            pool.encode(scene.model, blocks, cached)

        for kind in KINDS:
            yield Work(f"{encoded}K as {len(blocks)} blocks", kind, kind, encode, warm)
    if given.recomputed:
        for kind in KINDS:
            with within(scene, kind):
                prompt = Online(scene, Candidate("", no_sample))  # its blocks, and a runner in this precision
            for name, choice in (("question-guided", QueryGuided()), ("answer-guided", AnswerGuided())):
                again = partial(recomputed, prompt, choice)
                yield Work("15% of 27K computed again", f"{name}, {kind}", kind, again, warm)


def times(given: Any) -> None:
    """Time every workload in rounds, and write after each round."""
    scene = scene_of(given.tiny)
    end, listed = perf_counter() + given.seconds, list(works(scene, given))
    for number in range(given.runs + 1):
        for work in listed:
            with within(scene, work.kind):
                work.warm()
                if number:
                    work.ms.append(clock(work.once))
                else:
                    work.count()
        if number:
            _write_times(given, scene, listed)
        if perf_counter() > end:
            return


def _write_times(given: Any, scene: Scene, listed: list[Work]) -> None:
    exact = {(w.workload, w.candidate.removesuffix(w.kind)): w for w in listed if w.kind == KINDS[0]}
    with writer(given, "float8@times", scene.model.device, model="Llama-3.1-8B") as tables:
        for work in listed:
            other = exact[work.workload, work.candidate.removesuffix(work.kind)]
            named = {"workload": work.workload, "candidate": work.candidate}
            tables.timings([{**named, **timing.summarise_ms(work.ms).to_json(), "samples": work.ms}])
            about = {"setting": named}
            if work.density is not None:
                tables.counts([{**about, "measure": "density", "value": work.density}])
            if work is other:
                continue
            ratio = [a / b for a, b in zip(other.ms, work.ms, strict=True)]
            tables.counts([{**about, "measure": "faster", **mean_of(ratio)}])
            if work.logits is not None and other.logits is not None:
                near = cosine_similarity(work.logits.double(), other.logits.double(), 0)
                tables.counts([{**about, "n": len(ratio), "measure": "cosine", "value": float(near)}])


def answered(given: Any) -> None:
    """Answer the questions in both precisions, and write the differences."""
    kinds = {kind: models.load(given.model, given.device, dtype) for kind, dtype in zip(KINDS, DTYPES, strict=True)}
    plain = kinds[KINDS[0]]
    samples = data.load(given.data, given.samples, given.seed, given.passages)
    prompts, params = plain.layout.prompts(samples, plain.tokenizer), SamplingParams(32, stop=plain.layout.stop)
    gold = fidelity.gold_answers(samples, plain.layout, plain.tokenizer)
    methods: dict[str, Method] = {"full attention": Full(), "15% recomputed": Reuse(select=QueryGuided(), ratio=0.15)}
    rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for begin in range(0, len(samples), given.batch):
        at = range(begin, min(begin + given.batch, len(samples)))
        asked = [prompts[i] for i in at]
        full = answer(plain.model, plain.tokenizer, asked, Full(), None, params)
        known = fidelity.references(plain.model, plain.tokenizer, full, [gold[i] for i in at], 32, params.stop)
        for name, method in methods.items():
            for kind, loaded in kinds.items():
                found = answer(loaded.model, loaded.tokenizer, asked, method, MemoryStore(UNLIMITED), params)
                near = fidelity.compared(fidelity.predictor(loaded.model, found), known)
                texts = [one.text.strip() for one in found.generations]
                scores = [answers.exact_match(text, samples[i].answers) for text, i in zip(texts, at, strict=True)]
                rows.setdefault((name, kind), []).extend(
                    {**row, "em": score} for row, score in zip(near, scores, strict=True)
                )
    _write_answers(given, rows, list(methods))


def _write_answers(given: Any, rows: dict[tuple[str, str], list[dict[str, Any]]], methods: list[str]) -> None:
    name = Path(given.data).name.split(".")[0]
    about = {"model": given.model, "data": name, "seed": given.seed, "passages": given.passages}
    with writer(given, "float8@answers", given.device, **about) as tables:
        for name in methods:
            both = {kind: rows[name, kind] for kind in KINDS}
            for measure in ("em", *COMPARED):
                columns = {kind: [row[measure] for row in both[kind]] for kind in KINDS}
                for kind, values in columns.items():
                    tables.counts([{"method": name, "kind": kind, "measure": measure, **mean_of(values)}])
                gap = paired.difference(columns[KINDS[1]], columns[KINDS[0]])
                told = {"value": gap.mean, "low": gap.low, "high": gap.high, "n": gap.n}
                tables.counts([{"method": name, "kind": "float8 minus bfloat16", "measure": measure, **told}])


def main() -> None:
    """Measure the requested parts."""
    given = options(
        __doc__, parts=["times", "answers"], lengths=[128, 32, 8], chunked=[32], encoded=32, runs=20, seconds=500.0,
        tiny=False, device="cuda", model="smollm2-reader", data="runs/files/nq-held.jsonl", samples=500, seed=50_000,
        passages=10, batch=32, bfla_only=False, recomputed=False,
    )  # fmt: skip
    for part in given.parts:
        {"times": times, "answers": answered}[part](given)


if __name__ == "__main__":
    main()
