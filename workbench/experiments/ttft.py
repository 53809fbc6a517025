"""Time to the first token on the device at hand, several ways taken in turns, so that a busy machine hurts all alike.

full           every token is computed, by the engine
block          all blocks come from a store in memory, re-encoded within the time
recompute      the same, and a share of the document tokens is computed again; choosing them is within the time
stock full     transformers' own prefill with torch's scaled_dot_product_attention
stock prefix   transformers over a ready cache of this very context in its place: the best a prefix cache can do
"""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache, PreTrainedModel

from workbench.core.blocks import Block, Prompt
from workbench.core.errors import BadInput
from workbench.core.kv import KV
from workbench.experiments.bench.timing import Roof
from workbench.methods import Method
from workbench.methods.generation import first_token
from workbench.methods.modes.full import Full
from workbench.methods.modes.reuse import Reuse
from workbench.methods.select import Select
from workbench.methods.select.query_guided import QueryGuided
from workbench.metrics import cost
from workbench.metrics.latency import Quantiles, measure, quantiles
from workbench.store import MemoryStore, Store, fetch, fingerprint, key_of

WAYS = ("full", "block", "recompute", "stock full", "stock prefix")
WORK = {way: way for way in WAYS} | {"stock full": "full", "stock prefix": "block"}  # what a way cannot do without
Job = Callable[[], object]


def in_turns(jobs: Mapping[str, Job], device: torch.device, repeats: int, warm_up: int = 1) -> dict[str, Quantiles]:
    """Seconds of every job, each `repeats` times after `warm_up` runs that do not count, one job after the other."""
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for turn in range(repeats):
        for name, job in jobs.items():
            seconds[name].append(measure([job], device, warm_up if turn == 0 else 0).p50)
    return {name: quantiles(times) for name, times in seconds.items()}


def stock_of(model: PreTrainedModel) -> PreTrainedModel:
    """The same model with transformers' own attention: a copy that shares every weight."""
    kept = {id(x): x for x in chain(model.parameters(), model.buffers())}
    stock = deepcopy(model, kept)
    stock.set_attn_implementation("sdpa")
    return stock


def filled(model: PreTrainedModel, blocks: Sequence[Block]) -> MemoryStore:
    """A store that holds these blocks."""
    store = MemoryStore(1 << 62)
    fetch(model, blocks, store)
    return store


class Part:
    """A store that holds the first `count` of some blocks and keeps nothing new: every request finds and misses the
    same."""

    def __init__(self, model: PreTrainedModel, blocks: Sequence[Block], store: Store, count: int):
        name = fingerprint(model)
        found = {key: store.get(key) for key in (key_of(name, model.dtype, block) for block in blocks[:count])}
        self._entries: dict[str, KV] = {key: kv for key, kv in found.items() if kv is not None}

    def get(self, key: str) -> KV | None:
        return self._entries.get(key)

    def put(self, key: str, kv: KV) -> None:
        """Nothing is kept."""


def jobs_of(
    model: PreTrainedModel, prompt: Prompt, store: Store, ratio: float = 0.15, ways: Sequence[str] = WAYS
) -> dict[str, Callable[[], int]]:
    """A function for every way, run once; each returns the first token. `store` holds the prompt's blocks.

    Raises BadInput for an unknown way, and where engine and transformers disagree about the first token in
    fp32 (in fewer bits, logits that are nearly equal may change places).
    """
    if odd := [way for way in ways if way not in WAYS]:
        raise BadInput(f"way {odd[0]!r}: it is one of {', '.join(WAYS)}")
    stock = stock_of(model)
    tokens, context = prompt.tokens.to(model.device)[None], prompt.starts[-1]
    ready = DynamicCache(config=stock.config)

    def ask(ids: torch.Tensor, **given: Any) -> int:
        with torch.no_grad():
            return int(stock(ids, logits_to_keep=1, use_cache=True, **given).logits[0, -1].argmax())

    def prefix() -> int:
        token = ask(tokens[:, context:], past_key_values=ready)
        ready.crop(-(len(prompt) - context))
        return token

    if "stock prefix" in ways:
        ask(tokens[:, :context], past_key_values=ready)
    found: dict[str, Callable[[], int]] = {
        way: partial(first_token, model, prompt, method, store) for way, method in methods(ratio).items()
    }
    found |= {"stock full": partial(ask, tokens), "stock prefix": prefix}
    first = {way: found[way]() for way in ways}  # which also warms up
    exact = [token for way, token in first.items() if way not in ("block", "recompute")]
    if model.dtype == torch.float32 and len(set(exact)) > 1:
        raise BadInput(f"at {len(prompt)} tokens engine and transformers disagree about the first token: {exact}")
    return {way: found[way] for way in ways}


def methods(ratio: float) -> dict[str, Method]:
    """The engine's own ways."""
    return {"full": Full(), "block": Reuse(), "recompute": Reuse(select=QueryGuided(), ratio=ratio)}


def by_length(
    model: PreTrainedModel, prompts: Sequence[Prompt], repeats: int, ratio: float = 0.15, ways: Sequence[str] = WAYS
) -> list[dict[str, Any]]:
    """Records {length, way, p5, p50, p95 (seconds), n, flops, bytes} for prompts of different lengths."""
    records = []
    for prompt in prompts:
        store = filled(model, prompt.context)
        times = in_turns(jobs_of(model, prompt, store, ratio, ways), model.device, repeats, warm_up=0)
        for way, time in times.items():
            method = methods(ratio)[WORK[way]]
            records.append({"length": len(prompt), "way": way, **_plain(time), **_cost(model, prompt, method, store)})
    return records


def by_cached_share(
    model: PreTrainedModel, prompt: Prompt, shares: Sequence[float], repeats: int
) -> list[dict[str, Any]]:
    """Records {share, p5, …}: the first blocks of the context come from the store, the others are encoded within the
    time. `share` is of the context's tokens, by whole blocks."""
    store, lengths = filled(model, prompt.context), [len(block) for block in prompt.context]
    counts = {round(share * len(lengths)) for share in shares}
    parts = {count: Part(model, prompt.context, store, count) for count in sorted(counts)}
    jobs = {str(count): partial(first_token, model, prompt, "block", part) for count, part in parts.items()}
    times = in_turns(jobs, model.device, repeats)
    shape, found = cost.shape_of(model), []
    asked = _cost(model, prompt, Reuse(), store)
    for count in parts:
        encoded = cost.encoding(shape, lengths[count:], model.dtype.itemsize) if lengths[count:] else None
        sums = {"flops": asked["flops"] + (encoded.flops if encoded else 0.0)}
        share = sum(lengths[:count]) / sum(lengths)
        found.append({"share": share, "blocks": count, **_plain(times[str(count)]), **sums})
    return found


def by_ratio(
    model: PreTrainedModel, prompt: Prompt, ratios: Sequence[float], repeats: int, select: Select
) -> list[dict[str, Any]]:
    """Records {ratio, p5, …} of reuse with a share of the document tokens computed again; ratio 0 chooses nothing."""
    store = filled(model, prompt.context)
    ways = {ratio: Reuse(select=select if ratio else None, ratio=ratio) for ratio in ratios}
    jobs = {str(ratio): partial(first_token, model, prompt, way, store) for ratio, way in ways.items()}
    times = in_turns(jobs, model.device, repeats)
    return [
        {"ratio": ratio, **_plain(times[str(ratio)]), **_cost(model, prompt, way, store)} for ratio, way in ways.items()
    ]


def computed(
    shape: cost.Shape, lengths: Sequence[int], itemsize: int, question: int, ratio: float = 0.15
) -> list[dict[str, Any]]:
    """Records {length, way, flops, bytes} of full, block and recompute (its share spread evenly, the choice of it left
    out) for any shape of a model."""
    found = []
    for length in lengths:
        context = max(0, length - question)
        again = np.unique(np.linspace(0, max(0, context - 1), round(ratio * context)).astype(int))
        asked = np.arange(context, length)
        rows = {"full": np.arange(length), "block": asked, "recompute": np.concatenate((again[again < context], asked))}
        for way, which in rows.items():
            one = cost.first_token(shape, which, length, itemsize)
            found.append({"length": length, "way": way, "flops": one.flops, "bytes": one.bytes})
    return found


def ceilings(device: torch.device, dtype: torch.dtype, repeats: int = 5) -> Roof:
    """What this device reaches, its best of `repeats`: a copy much larger than its caches, and a large product of
    matrices in `dtype`."""
    size, side = (1 << 30, 8192) if device.type == "cuda" else (1 << 27, 1024)
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target, a = torch.empty_like(source), torch.randn(side, side, device=device).to(dtype)
    out = torch.empty_like(a)
    copy, product = (
        min(measure([job], device, warm_up=1).p50 for _ in range(repeats))
        for job in (partial(target.copy_, source), partial(torch.matmul, a, a, out=out))
    )
    return Roof(2 * source.nbytes / copy, 2.0 * side**3 / product)


def _plain(time: Quantiles) -> dict[str, float]:
    return {"p5": time.p5, "p50": time.p50, "p95": time.p95, "n": time.n}


def _cost(model: PreTrainedModel, prompt: Prompt, method: Method, store: Store) -> dict[str, float]:
    """Operations and bytes of one request, selection included."""
    (start,) = method.begin(model, [prompt], store)
    found = cost.of_passes(cost.shape_of(model), start.passes, start.reused, model.dtype.itemsize)
    return {"flops": found.flops, "bytes": found.bytes, "rows": float(start.computed)}
