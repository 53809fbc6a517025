"""A trial: one model, one data set, one way of using cached blocks; what comes out is a Record."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import get_args

import numpy as np
from transformers import PreTrainedModel

from workbench import data, models
from workbench.blocks import Prompt
from workbench.data import Sample
from workbench.engine import Positions
from workbench.errors import BadInput
from workbench.generation import Generation, Mode, first_token, generate
from workbench.metrics import answers, cost
from workbench.metrics.latency import Quantiles, measure
from workbench.models import Loaded
from workbench.probing import facts_of, prepare_model
from workbench.record import Record, device_name, versions
from workbench.store import MemoryStore, Stats, fetch

Progress = Callable[[int, int], None]  # (samples answered, of how many)
BATCH_TOKENS = 16384  # most prompt tokens that are computed together, whatever `batch` says


@dataclass(frozen=True)
class Trial:
    """What is tried. Validates itself: BadInput for a value that is not allowed, before anything is loaded.

    model           folder or name (`models.load`)
    data            file or name (`data.load`)
    mode            "full": ordinary prefill; "block": every block but the question is cached alone and reused
    positions       of reused keys, block mode only: "re-encoded" for where the block stands now, or "naive", as cached
    samples, seed, passages   how many questions, which draw, how many passages each (None: as the data has them)
    batch           requests answered together, at most
    timed           requests whose time to first token is measured, at most
    store_gib       budget of the store of cached blocks, GiB
    """

    model: str
    data: str = "lab"
    mode: str = "full"
    positions: str = "re-encoded"
    samples: int = 200
    seed: int = 0
    passages: int | None = None
    device: str = "cpu"
    dtype: str | None = None
    batch: int = 16
    max_new_tokens: int = 32
    timed: int = 20
    store_gib: float = 2.0

    def __post_init__(self) -> None:
        for name, allowed in (("mode", get_args(Mode)), ("positions", get_args(Positions))):
            if (value := getattr(self, name)) not in allowed:
                raise BadInput(f"unknown {name} {value!r}: allowed are {', '.join(allowed)}")
        if self.mode == "full" and self.positions != "re-encoded":
            raise BadInput(f"positions {self.positions!r} is for mode block: full attention moves no cached block")
        for name, least in (("samples", 1), ("batch", 1), ("max_new_tokens", 1), ("timed", 1), ("seed", 0)):
            if not _is_int(value := getattr(self, name)) or value < least:
                raise BadInput(f"{name} is {value!r}: a whole number of at least {least} is needed")
        if self.passages is not None and (not _is_int(self.passages) or self.passages < 1):
            raise BadInput(f"passages is {self.passages!r}: a whole number of at least 1 is needed, or none")
        if not isinstance(self.store_gib, int | float) or not 0 < self.store_gib < float("inf"):
            raise BadInput(f"store_gib is {self.store_gib!r}: a positive number is needed")

    def run(self, progress: Progress | None = None, loaded: Loaded | None = None) -> Record:
        """Answer every question, measure, score.

        `loaded` is the model where it is in memory already (`models.load`); `progress` is called after every batch.
        Raises BadInput, before any work, for unknown names, broken files and a prompt over the model's context.
        """
        samples = data.load(self.data, self.samples, self.seed, self.passages)
        model, tokenizer, layout = loaded or models.load(self.model, self.device, self.dtype)
        prepare_model(model)
        prompts = layout.prompts(samples, tokenizer)
        _check_context(model, samples, prompts)
        store = MemoryStore(int(self.store_gib * 2**30))
        begin = time.perf_counter()
        found = self.answer(prompts, (model, tokenizer, layout), store, progress)
        seconds = time.perf_counter() - begin
        ttft = measure(_first_tokens(model, prompts[: self.timed], self), model.device)
        return self._record(model, samples, prompts, found, store.stats, ttft, seconds)

    def answer(
        self, prompts: Sequence[Prompt], loaded: Loaded, store: MemoryStore, progress: Progress | None = None
    ) -> list[Generation]:
        """Greedy answers to prompts, in batches; in block mode their blocks come from `store` and stay in it."""
        model, tokenizer, layout = loaded
        found: list[Generation] = []
        for batch in batches([len(prompt) for prompt in prompts], self.batch):
            found += generate(
                model,
                tokenizer,
                [prompts[i] for i in batch],
                mode=self.mode,  # type: ignore[arg-type]  # checked when the trial was made
                positions=self.positions,  # type: ignore[arg-type]
                store=store,
                max_new_tokens=self.max_new_tokens,
                stop=layout.stop,
            )
            if progress:
                progress(len(found), len(prompts))
        return found

    def _record(
        self,
        model: PreTrainedModel,
        samples: Sequence[Sample],
        prompts: Sequence[Prompt],
        found: Sequence[Generation],
        stats: Stats,
        ttft: Quantiles,
        seconds: float,
    ) -> Record:
        texts = [answer.text.strip() for answer in found]
        aliases = [sample.answers for sample in samples]
        kinds = sorted({sample.kind for sample in samples})
        of_kind = {kind: [i for i, sample in enumerate(samples) if sample.kind == kind] for kind in kinds}
        shape = cost.shape_of(model)
        costs = [
            cost.first_token(shape, range(len(p) - answer.rows_computed, len(p)), len(p), model.dtype.itemsize)
            for p, answer in zip(prompts, found, strict=True)
        ]
        return Record(
            **asdict(answers.score(texts, aliases, self.seed)),
            trial=asdict(self),
            by_kind={
                kind: answers.score([texts[i] for i in where], [aliases[i] for i in where], self.seed)
                for kind, where in of_kind.items()
            },
            ttft_s=ttft,
            prompt_tokens=_mean([len(prompt) for prompt in prompts]),
            rows_computed=_mean([answer.rows_computed for answer in found]),
            rows_reused=_mean([answer.rows_reused for answer in found]),
            flops=_mean([c.flops for c in costs]),
            flops_linear=_mean([c.linear for c in costs]),
            flops_attention=_mean([c.attention for c in costs]),
            bytes=_mean([c.bytes for c in costs]),
            bytes_loaded=_mean([c.kv_loaded for c in costs]),
            hit_rate=stats.hit_rate,
            parameters=shape.stored,
            seconds=seconds,
            device=device_name(model.device),
            versions=versions(),
        )


def batches(lengths: Sequence[int], most: int, tokens: int = BATCH_TOKENS) -> Iterator[list[int]]:
    """Indices in order, grouped to at most `most` requests and `tokens` tokens (a longer prompt goes alone)."""
    group: list[int] = []
    for i, length in enumerate(lengths):
        if group and (len(group) == most or sum(lengths[j] for j in group) + length > tokens):
            yield group
            group = []
        group.append(i)
    if group:
        yield group


def _first_tokens(model: PreTrainedModel, prompts: Sequence[Prompt], trial: Trial) -> Iterator[Callable[[], int]]:
    """One job a prompt: from its token ids to its first new token. In block mode its blocks lie in a store already."""
    for prompt in prompts:
        if trial.mode == "full":
            yield partial(first_token, model, prompt, None, "re-encoded")
        else:
            store = MemoryStore(1 << 62)
            fetch(model, prompt.context, store)
            yield partial(_block, model, prompt, store, trial.positions)


def _block(model: PreTrainedModel, prompt: Prompt, store: MemoryStore, positions: str) -> int:
    return first_token(model, prompt, fetch(model, prompt.context, store), positions)  # type: ignore[arg-type]


def _check_context(model: PreTrainedModel, samples: Sequence[Sample], prompts: Sequence[Prompt]) -> None:
    longest = max(range(len(prompts)), key=lambda i: len(prompts[i]))
    context = facts_of(model).context
    if context and len(prompts[longest]) >= context:
        raise BadInput(
            f"the prompt of sample {samples[longest].id!r} has {len(prompts[longest])} tokens, "
            f"the model's context is {context}, answer included: ask for fewer passages"
        )


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
