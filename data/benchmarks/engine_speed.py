"""Both engines on the same questions: greedy tokens beside each other, and how fast each answers and decodes.

unit = answered(loaded, trial, samples, batches=(1, 16))
unit = decoded(loaded, prompts, batches=(1, 16), count=64)
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import torch
from engine_tokens import Tokens, differences
from transformers import PreTrainedModel

from workbench.core.blocks import Prompt
from workbench.experiments.trials.trial import Trial, batches
from workbench.methods import Method
from workbench.methods.answered import Generation
from workbench.methods.generation import generate
from workbench.metrics.answers import Records
from workbench.models.loading import Loaded
from workbench.store import UNLIMITED, MemoryStore

ENGINES = ("contiguous", "paged")
Tell = Callable[[str], None]


def answered(
    loaded: Loaded, trial: Trial, prompts: Sequence[Prompt], sizes: Sequence[int], tell: Tell
) -> dict[str, Any]:
    """Answer prompts as a trial does, by both engines, so many at a time: {speed: rows, tokens: rows}.

    Each engine answers twice: over an empty store, where blocks are encoded and steps captured within the time
    ("cold"), and over the store that this leaves ("warm").
    """
    model, method = loaded.model, trial.method(system=bool(loaded.layout.system))
    speed: Records = []
    said: dict[tuple[str, int], Tokens] = {}
    for size in sizes:
        for engine in ENGINES:
            store = MemoryStore(UNLIMITED)
            for state in ("cold", "warm"):
                one = replace(trial, batch=size, engine=engine)
                work = partial(one.answer, prompts, loaded, store, None, method)
                seconds, generations = _timed(model, work)
                row = {"engine": engine, "batch": size, "store": state, **_rates(seconds, generations)}
                speed.append(row)
                tell(
                    " ".join(
                        f"{key} {value if isinstance(value, str) else round(value, 2)}" for key, value in row.items()
                    )
                )
            said[engine, size] = [generation.tokens for generation in generations]
            del store
    pairs = [(("contiguous", size), ("paged", size)) for size in sizes]
    pairs += [(("contiguous", sizes[0]), ("contiguous", size)) for size in sizes[1:]]  # how much batches change alone
    tokens = [
        {
            "between": [list(one), list(other)],
            **differences(loaded, prompts, method, said[one], said[other]),
        }
        for one, other in pairs
    ]
    return {"speed": speed, "tokens": tokens}


def beside(before: Mapping[str, Any], found: Mapping[str, Any], sizes: Sequence[int]) -> dict[str, Any]:
    """Join what `answered` found with an earlier unit, of which rows of other numbers at a time stay."""
    speed = [row for row in before.get("speed", []) if row["batch"] not in sizes]
    tokens = [pair for pair in before.get("tokens", []) if not {size for _, size in pair["between"]} & {*sizes}]
    rows = sorted([*speed, *found["speed"]], key=lambda row: int(row["batch"]))
    return {"speed": rows, "tokens": [*tokens, *found["tokens"]]}


def decoded(
    loaded: Loaded, prompts: Sequence[Prompt], method: Method, sizes: Sequence[int], count: int, tell: Tell
) -> Records:
    """Decode `count` tokens of every prompt by both engines, no end token ending any: tokens a second behind the first.

    {engine, batch, tokens_per_s, ms_per_step, requests}; a batch that is warmed up is not counted.
    """
    model, rows = loaded.model, Records()
    words = _Endless(loaded.tokenizer)
    with endless(model):
        for size in sizes:
            groups = list(batches([len(prompt) for prompt in prompts], size))
            for engine in ENGINES:
                store = MemoryStore(UNLIMITED)
                seconds = []
                for number, group in enumerate([groups[0], *groups]):
                    asked = [prompts[i] for i in group]
                    work = partial(generate, model, words, asked, method, store, count, engine=engine)
                    spent, said = _timed(model, work)
                    if number and len(group) == size:
                        seconds.append(spent - max(one.ttft for one in said))
                if seconds:
                    step = median(seconds) / (count - 1)
                    rates = {"tokens_per_s": size / step, "ms_per_step": 1e3 * step, "requests": size * len(seconds)}
                    rows.append({"engine": engine, "batch": size, "count": count, **rates})
                    tell(f"decoding {engine} batch {size}: {size / step:,.0f} tokens/s, {1e3 * step:.2f} ms a step")
    return rows


@contextmanager
def endless(model: PreTrainedModel) -> Iterator[None]:
    """Let no token end a text meanwhile."""
    owners: list[Any] = [model.generation_config, model.config, model.config.get_text_config(decoder=True)]
    before = [getattr(owner, "eos_token_id", None) for owner in owners]
    for owner in owners:
        owner.eos_token_id = None
    try:
        yield
    finally:
        for owner, ids in zip(owners, before, strict=True):
            owner.eos_token_id = ids


class _Endless:
    """A tokenizer without an end token."""

    eos_token_id = None

    def __init__(self, tokenizer: Any):
        self.tokenizer = tokenizer

    def decode(self, *tokens: Any, **options: Any) -> str:
        return str(self.tokenizer.decode(*tokens, **options))


def _timed(model: PreTrainedModel, work: Callable[[], list[Generation]]) -> tuple[float, list[Generation]]:
    begin = perf_counter()
    done = work()
    if model.device.type == "cuda":
        torch.cuda.synchronize()
    return perf_counter() - begin, done


def _rates(seconds: float, generations: Sequence[Generation]) -> dict[str, float]:
    tokens = sum(len(generation.tokens) for generation in generations)
    rates = {"questions_per_s": len(generations) / seconds, "tokens_per_s": tokens / seconds}
    return {"questions": len(generations), "tokens": tokens, "seconds": seconds, **rates}
