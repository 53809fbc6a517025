"""Many methods on many questions beside full attention: fidelity, answers and cost, one row a question and method.

    rows = measure(loaded, samples, {"Full Reuse": Reuse(), "CacheBlend": Reuse(select=..., ratio=0.15)})

A batch of questions is answered by full attention once; every method of the batch is compared with that, over blocks
that methods of one preparation share. `answers` and `counts` make rows of result tables of what was measured.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from workbench.core.blocks import Prompt
from workbench.core.errors import BadInput
from workbench.data import Sample
from workbench.engine.decoding import text_of
from workbench.experiments.trials.trial import batches
from workbench.experiments.trials.trial_measures import scores as scored
from workbench.methods import Method, finish
from workbench.methods.config import MethodConfig
from workbench.methods.generation import decode_ready
from workbench.methods.method import SamplingParams
from workbench.methods.modes.reuse import Reuse
from workbench.metrics import cost, fidelity
from workbench.metrics.fidelity import Reference
from workbench.models.loading import Loaded
from workbench.results import METHOD, means, schema
from workbench.store import UNLIMITED, MemoryStore, Store

Rows = list[dict[str, Any]]
COUNTED = "em f1 contains nll nll_extra kl kl_first kl_gold agree agree_first rows_charged flops".split()
TOKENS = 32768  # most prompt tokens of a batch


@dataclass(frozen=True)
class _Batch:
    """Questions that are measured together, and full attention's answers to them."""

    samples: list[Sample]
    prompts: list[Prompt]
    known: list[Reference]


def measure(
    loaded: Loaded,
    samples: Sequence[Sample],
    methods: Mapping[str, Method],
    *,
    answers: bool = False,
    max_new_tokens: int = 32,
    batch: int = 32,
    tokens: int = TOKENS,
    store: MemoryStore | None = None,
) -> Rows:
    """Return one row a sample and method, batch by batch; the methods of a batch in their order.

    A row is {id, kind, method, tokens, what `fidelity.compare` returns, full (full attention's answer), full_em,
    full_f1, answer, em, f1, rows, rows_reused, flops, bytes, seconds}.

    answers   decode every method's greedy answer too; else `answer`, `em` and `f1` are None
    batch, tokens   most questions, and most tokens of their prompts, of a batch
    store     holds cached blocks from batch to batch; None: for one batch, shared by its methods

    rows, flops and bytes are what one request is charged, passes of the selector included; `rows` are rows through all
    layers. `seconds` is the time of the batch to its first tokens by request, cached blocks in the store.
    Scores of a gold answer are None where a sample has no answer. Raises BadInput before any work.
    """
    loaded = Loaded(*loaded)
    model, tokenizer, layout = loaded
    _check(samples, methods)
    prompts = layout.prompts(samples, tokenizer)
    for prompt in prompts:
        loaded.spec.check_tokens(prompt.tokens)
    gold = fidelity.gold_answers(samples, layout, tokenizer)
    made: Rows = []
    for at in batches([len(prompt) for prompt in prompts], batch, tokens):
        here, golden = [prompts[i] for i in at], [gold[i] for i in at]
        known = fidelity.reference(model, tokenizer, here, golden, max_new_tokens, layout.stop)
        group = _Batch([samples[i] for i in at], here, known)
        kept = MemoryStore(UNLIMITED) if store is None else store
        for name, method in methods.items():
            made += [{"method": name} | row for row in _rows(loaded, group, method, kept, max_new_tokens, answers)]
    return made


def answers(rows: Rows, configs: Mapping[str, MethodConfig]) -> Rows:
    """Return rows of the result table `answers` from what `measure` returned of methods by these names."""
    known = {name: {field: getattr(config, field) for field in METHOD[1:]} for name, config in configs.items()}
    taken = schema.columns("answers")
    whole = ({**known[row["method"]], **row, "question": row["id"]} for row in rows)
    return [{name: value for name, value in row.items() if name in taken and value is not None} for row in whole]


def counts(answered: Rows) -> Rows:
    """Return rows of the result table `counts`: the mean of every score with its interval, by method and kind."""
    frame = schema.frame("answers", schema.rows("answers", answered, experiment="trial"))
    frame = frame.assign(nll_extra=frame.nll - frame.nll_full, rows_charged=frame.rows)
    kinds = [frame.assign(kind="all"), *([frame] if frame.kind.nunique() > 1 else [])]
    return [
        {name: value for name, value in row.items() if value == value}
        for each in kinds
        for row in means(each, COUNTED, [*METHOD, "kind"]).to_dict("records")
    ]


def _rows(
    loaded: Loaded, group: _Batch, method: Method, store: Store, max_new_tokens: int, answers: bool
) -> Iterator[dict[str, Any]]:
    model, tokenizer, layout = loaded
    if isinstance(method, Reuse):
        method.prepare(model, group.prompts, store)  # before the clock starts: blocks are in the store at request time
    reserve = max((len(tokens) for one in group.known for tokens in (one.gold, one.own)), default=0)
    begin = _clock(model)
    ready = method.begin(model, group.prompts, store, reserve)
    logits = finish(model, ready)
    seconds = (_clock(model) - begin) / len(ready)
    said: list[str | None] = [None] * len(ready)
    if answers:
        steps = decode_ready(model, tokenizer, ready, logits, SamplingParams(max_new_tokens, stop=layout.stop))
        said = [_text(tokenizer, tokens, layout.stop) for tokens in zip(*steps, strict=True)] or [""] * len(ready)
    compared = fidelity.compare(model, ready, logits, group.known)  # over what was decoded
    shape = cost.shape_of(model)
    for sample, prompt, one, known, scores, text in zip(
        group.samples, group.prompts, ready, group.known, compared, said, strict=True
    ):
        spent = cost.of_passes(shape, one.passes, one.reused, model.dtype.itemsize)
        yield {
            "id": sample.id,
            "kind": sample.kind,
            "tokens": len(prompt),
            **scores,
            "full": known.text,
            **scored(known.text, sample.answers, "full_"),
            "answer": text,
            **scored(text or "", () if text is None else sample.answers),
            "rows": cost.rows_charged(one.passes, loaded.spec.layers),
            "rows_reused": one.reused,
            "flops": spent.flops,
            "bytes": spent.bytes,
            "seconds": seconds,
        }


def _text(tokenizer: Any, tokens: Sequence[int | None], stop: Sequence[str]) -> str:
    return text_of(tokenizer, [token for token in tokens if token is not None], stop).strip()


def _clock(model: PreTrainedModel) -> float:
    """Return the time, after all that a GPU was asked for."""
    if model.device.type == "cuda":
        torch.cuda.synchronize(model.device)
    return time.perf_counter()


def _check(samples: Sequence[Sample], methods: Mapping[str, Method]) -> None:
    if not samples or not methods:
        raise BadInput(f"{len(samples)} samples and {len(methods)} methods: at least one of each is needed")
    ids = [sample.id for sample in samples]
    if len(set(ids)) < len(ids):
        twice = next(name for name in ids if ids.count(name) > 1)
        raise BadInput(f"two samples have the id {twice!r}: rows are told apart by it")
