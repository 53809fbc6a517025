"""Tokens that methods select and compute, offline and online; their agreement; neighbours of passages."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from workbench.core.blocks import Block, Prompt
from workbench.core.errors import BadInput, not_allowed
from workbench.data.retrieval_corpus import Corpus
from workbench.data.sample import Sample, document_starts
from workbench.methods import Method
from workbench.methods.config import MethodConfig
from workbench.methods.modes.reuse import Reuse
from workbench.metrics.answers import bootstrap
from workbench.metrics.cost import rows_charged
from workbench.store import MemoryStore
from workbench.store.views import RecordingStore

SYSTEM = "after_system"
COMPARED = {  # FusionRAG, figures 1 and 4; {n} neighbours
    "Full attention": MethodConfig(),
    "Full Reuse": MethodConfig(mode="block", prepare=SYSTEM),
    "CacheBlend": MethodConfig(mode="block", prepare=SYSTEM, select="kv_deviation"),
    "FusionRAG": MethodConfig(mode="block", prepare="with_neighbours(n={n})", select="query_guided"),
}


@dataclass(frozen=True)
class TokenStages:
    """Tokens of a prompt ([T] bool each) that are computed at each stage, and the cost of a request."""

    offline: Tensor  #: cached before the request
    scored: Tensor  #: computed online in some layers, by the selector
    online: Tensor  #: computed online in all layers
    encoded: int  #: tokens encoded for the cache, neighbours included
    rows: float  #: tokens computed online; passes of the selector count by their share of layers


def published(corpus: Corpus, ratio: float = 0.15, n: int = 10) -> dict[str, Method]:
    """Return the methods of FusionRAG's figures 1 and 4, with at most `n` neighbours."""
    n = min(n, len(corpus) - 1)
    methods = {}
    for name, config in COMPARED.items():
        prepare = config.prepare.format(n=n)
        settings = {**vars(config), "prepare": prepare, "ratio": ratio if config.select != "none" else config.ratio}
        methods[name] = MethodConfig(**settings).method(corpus)
    return methods


def token_stages(model: PreTrainedModel, prompt: Prompt, methods: Mapping[str, Method]) -> dict[str, TokenStages]:
    """Plan one request by each method over an empty store, without the last forward pass."""
    layers, stages = model.config.get_text_config(decoder=True).num_hidden_layers, {}
    for name, method in methods.items():
        store = RecordingStore(MemoryStore(1 << 34))
        (ready,) = method.begin(model, [prompt], store)
        offline, scored, online = (torch.zeros(len(prompt), dtype=torch.bool) for _ in range(3))
        online[ready.request.plan.rows.cpu()] = True
        for part in ready.passes[:-1]:
            scored[list(part.rows)] = True
        offline[: prompt.starts[-1]] = isinstance(method, Reuse)
        encoded = sum(len(kv) for key in store.stored if (kv := store.get(key)) is not None)
        stages[name] = TokenStages(offline, scored, online, encoded, rows_charged(ready.passes, layers))
    return stages


MEASURES = ("jaccard", "smaller")


def agreement(rows: Mapping[str, Sequence[Tensor]], measure: str = "jaccard") -> np.ndarray:
    """Return [M, M] overlap of the rows that M methods select, mean over the prompts in which either selects any.

    measure  "jaccard": tokens that both select, of those that either does; "smaller": of those of the smaller selection
    """
    if measure not in MEASURES:
        raise not_allowed("measure", measure, MEASURES)
    if len({len(choices) for choices in rows.values()}) > 1:
        raise BadInput("methods must select for the same prompts: one tensor of rows per prompt is needed")
    sets = [[set(choice.tolist()) for choice in choices] for choices in rows.values()]
    return np.array([[_mean_overlap(a, b, measure) for b in sets] for a in sets])


def _mean_overlap(a: list[set[int]], b: list[set[int]], measure: str) -> float:
    shares = []
    for x, y in zip(a, b, strict=True):
        size = len(x | y) if measure == "jaccard" else min(len(x), len(y))
        if size:
            shares.append(len(x & y) / size)
    return float(np.mean(shares)) if shares else float("nan")


def selection_mask(rows: Tensor, prompt: Prompt) -> Tensor:
    """Return [T] of the context tokens: 1 where a token is among `rows`, else 0."""
    return torch.zeros(prompt.starts[-1]).index_fill_(0, rows, 1.0)


def by_offset(values: Sequence[Tensor], prompts: Sequence[Prompt], bins: int = 10, system: int = 1) -> np.ndarray:
    """Return [P, bins]: the mean of `values` [T of the context] of P prompts, by relative position in the block.

    Tokens of the first `system` blocks are left out; nan if a bin has no token.
    """
    offsets = [[np.arange(len(block)) * bins // len(block) for block in prompt.blocks[system:-1]] for prompt in prompts]
    return _means(values, prompts, [np.concatenate([[], *offset]).astype(int) for offset in offsets], bins, system)


def by_block(values: Sequence[Tensor], prompts: Sequence[Prompt], system: int = 1) -> np.ndarray:
    """Return [P, B]: the mean of `values` by document block, first, second, …, up to B; nan if a prompt has fewer."""
    ranks = [prompt.block_of[prompt.starts[system] : prompt.starts[-1]].numpy() - system for prompt in prompts]
    return _means(values, prompts, ranks, max(len(prompt.context) - system for prompt in prompts), system)


def _means(
    values: Sequence[Tensor], prompts: Sequence[Prompt], bins: Sequence[np.ndarray], count: int, system: int
) -> np.ndarray:
    means = np.full((len(prompts), count), np.nan)
    for row, value, prompt, bin_of in zip(means, values, prompts, bins, strict=True):
        tokens = np.bincount(bin_of, minlength=count)
        total = np.bincount(bin_of, value[prompt.starts[system] :].double().cpu().numpy(), count)
        np.divide(total, tokens, out=row, where=tokens > 0)
    return means


def summary(means: np.ndarray, name: str, at: Sequence[float], seed: int = 0) -> list[dict[str, Any]]:
    """Return a record {name, at, mean, low, high, n} for each column of `means` [P, K].

    Means are over prompts, with bootstrap intervals.
    """
    records = []
    for x, column in zip(at, means.T, strict=True):
        present = column[~np.isnan(column)]
        low, high = bootstrap(present, seed, 500)
        mean = float(present.mean()) if len(present) else float("nan")
        records.append({"name": name, "at": x, "mean": mean, "low": low, "high": high, "n": len(present)})
    return records


def antecedents(
    samples: Iterable[Sample], prompts: Iterable[Prompt], neighbours: Callable[[Block], Sequence[Block]]
) -> tuple[int, int]:
    """Count the continued passages of a lab corpus whose antecedent is among their `neighbours`: (found, all).

    A continued passage says "She …" of a person whom only the first passage of its document, its antecedent, names.
    Preprocessing can supply that only if the antecedent is a neighbour. Each passage counts once.
    """
    antecedent_of: dict[Block, Block] = {}
    for sample, prompt in zip(samples, prompts, strict=True):
        documents = prompt.context[len(prompt.context) - len(sample.ctxs) :]
        for i, first in enumerate(document_starts(sample.ctxs)):
            if first < i:
                antecedent_of.setdefault(documents[i], documents[first])
    return sum(antecedent in neighbours(block) for block, antecedent in antecedent_of.items()), len(antecedent_of)


def places(values: Sequence[Tensor], prompts: Sequence[Prompt], name: str, bins: int = 10) -> list[dict[str, Any]]:
    """Return where in documents `values` [T of the context] are larger: {by, name, at, mean, low, high, n}.

    By "offset", `at` is the middle of one of `bins` parts of a block, from 0 to 1. By "rank", it counts blocks from 1.
    """
    offsets, ranks = by_offset(values, prompts, bins), by_block(values, prompts)
    middles = [(i + 0.5) / bins for i in range(bins)]
    by_offsets = [{"by": "offset", **record} for record in summary(offsets, name, middles)]
    return by_offsets + [{"by": "rank", **r} for r in summary(ranks, name, range(1, ranks.shape[1] + 1))]
