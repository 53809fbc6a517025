"""Time to the first token: measured on this device, and its cost computed for any model shape.

Methods run interleaved, one request each in turn, so that a busy machine does not slow only one of them.

full           computes every token, in the engine
block          takes all blocks from a store in memory and re-encodes their positions, within the time
recompute      does the same and recomputes a share of the document tokens; their selection is within the time
stock full     is transformers' own prefill with torch's scaled_dot_product_attention
stock prefix   is transformers over a ready cache of the same context, as a prefix cache with a full hit

`over_tiers` measures times by tier of the cached blocks and length of the context (FusionRAG, figure 19): full
attention, and reuse of blocks from memory and from a folder on disk, with and without recomputation, interleaved in one
process. Blocks from disk are read and verified within the time, from a warm page cache.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import partial
from itertools import chain, cycle
from pathlib import Path
from typing import Any, TypeVar

import torch
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from workbench.core.blocks import Block, Prompt
from workbench.core.errors import BadInput, not_allowed
from workbench.data import layouts
from workbench.data.layouts import Layout
from workbench.data.sample import Sample
from workbench.experiments.bench.timing import measure_roof
from workbench.methods import Method
from workbench.methods.generation import first_token
from workbench.methods.modes.full import Full
from workbench.methods.modes.reuse import Reuse
from workbench.methods.select import Select
from workbench.methods.select.query_guided import QueryGuided
from workbench.metrics import cost
from workbench.metrics.answers import Records
from workbench.metrics.latency import Quantiles, measure, quantiles
from workbench.metrics.published_numbers import FUSION_RAG, QUESTION
from workbench.models.loading import Loaded
from workbench.models.transformers_attention import cache_argument
from workbench.models.weights.compact import as_loaded
from workbench.store import UNLIMITED, FolderStore, MemoryStore, Store, fetch, fingerprint, key_of
from workbench.store.views import ReadOnlyStore

METHODS = ("full", "block", "recompute", "stock full", "stock prefix")
WORK = {name: name for name in METHODS} | {"stock full": "full", "stock prefix": "block"}  # method → its minimum work
TIMES = {"ms": "p50", "p5": "p5", "p95": "p95", "least": "least", "most": "most"}
Job = Callable[[], object]
Key = TypeVar("Key", str, int, float)
Prompts = Sequence[Prompt]
ceilings = measure_roof  # bytes and FLOPs per second that this device reaches


def prompt_of_length(
    length: int, samples: Sequence[Sample], tokenizer: PreTrainedTokenizerBase, layout: Layout, question: int = QUESTION
) -> Prompt:
    """Return a prompt of `length` tokens.

    Its blocks are passages of `samples`, the last one truncated, followed by `question` tokens.
    """
    if length <= question:
        raise BadInput(f"length {length}: a prompt needs more than its {question} tokens of question")
    pieces = list(chain.from_iterable(layout.pieces(sample)[1 if layout.system else 0 : -1] for sample in samples))
    text = layout.question.format(question=" ".join(sample.question for sample in samples))
    *passages, last = layouts.prompts([[*pieces, text]], tokenizer, bos=layout.bos)[0].blocks
    blocks: list[Block] = []
    left = length - question
    for block in cycle(passages):
        blocks.append(Block(block.tokens[:left]))
        left -= len(blocks[-1])
        if not left:
            break
    tokens = (last.tokens * (question // len(last) + 1))[:question]
    return Prompt((*blocks, Block(tokens)))


def interleaved(jobs: Mapping[Key, Job], device: torch.device, repeats: int, warm_up: int = 1) -> dict[Key, Quantiles]:
    """Measure the seconds of each job `repeats` times, in turn, after `warm_up` uncounted runs of each."""
    seconds: dict[Key, list[float]] = {name: [] for name in jobs}
    for round_ in range(repeats):
        for name, job in jobs.items():
            seconds[name].append(measure([job], device, 0 if round_ else warm_up).p50)
    return {name: quantiles(times) for name, times in seconds.items()}


def stock_of(model: PreTrainedModel) -> PreTrainedModel:
    """Return the same model with transformers' own attention.

    It is a copy that shares all weights, except those whose memory layout differs from that of transformers.
    """
    shared = {id(x): as_loaded(x) for x in chain(model.parameters(), model.buffers())}
    stock = deepcopy(model, shared)
    stock.set_attn_implementation("sdpa")
    return stock


def filled_store(model: PreTrainedModel, blocks: Sequence[Block]) -> MemoryStore:
    """Return a store with these blocks."""
    store = MemoryStore(UNLIMITED)
    fetch(model, blocks, store)
    return store


def partial_store(model: PreTrainedModel, blocks: Sequence[Block], store: Store, count: int) -> ReadOnlyStore:
    """Return a view of `store` that contains only the first `count` of these blocks."""
    model_key = fingerprint(model)
    return ReadOnlyStore(store, {key_of(model_key, model.dtype, block) for block in blocks[:count]})


def jobs_of(
    model: PreTrainedModel, prompt: Prompt, store: Store, ratio: float = 0.15, methods: Sequence[str] = METHODS
) -> dict[str, Callable[[], int]]:
    """Return one function per method, already run once; each returns the first token.

    `store` has the prompt's blocks. Raises BadInput for an unknown method, and if engine and transformers give
    different first tokens in fp32 (in lower precision, nearly equal logits may swap).
    """
    if odd := [name for name in methods if name not in METHODS]:
        raise not_allowed("method", odd[0], METHODS)
    stock = stock_of(model)
    tokens, context = prompt.tokens.to(model.device)[None], prompt.starts[-1]
    ready = DynamicCache(config=stock.config)

    def compute(ids: torch.Tensor, **keywords: Any) -> int:
        with torch.no_grad():
            return int(stock(ids, logits_to_keep=1, use_cache=True, **keywords).logits[0, -1].argmax())

    def prefix() -> int:
        token = compute(tokens[:, context:], **cache_argument(stock, ready))
        ready.crop(-(len(prompt) - context))
        return token

    if "stock prefix" in methods:
        compute(tokens[:, :context], **cache_argument(stock, ready))
    jobs: dict[str, Callable[[], int]] = {
        name: partial(first_token, model, prompt, method, store) for name, method in engine_methods(ratio).items()
    }
    jobs |= {"stock full": partial(compute, tokens), "stock prefix": prefix}
    first = {name: jobs[name]() for name in methods}  # also the warm-up
    exact = [token for name, token in first.items() if name not in ("block", "recompute")]
    if model.dtype == torch.float32 and len(set(exact)) > 1:
        raise BadInput(f"at {len(prompt)} tokens engine and transformers disagree about the first token: {exact}")
    return {name: jobs[name] for name in methods}


def engine_methods(ratio: float) -> dict[str, Method]:
    """Return the methods that the engine runs."""
    return {"full": Full(), "block": Reuse(), "recompute": Reuse(select=QueryGuided(), ratio=ratio)}


def by_length(
    model: PreTrainedModel, prompts: Prompts, repeats: int, ratio: float = 0.15, methods: Sequence[str] = METHODS
) -> Records:
    """Measure prompts of different lengths: records {length, way, p5, p50, p95 (seconds), n, flops, bytes, rows}."""
    records = []
    for prompt in prompts:
        store = filled_store(model, prompt.context)
        times = interleaved(jobs_of(model, prompt, store, ratio, methods), model.device, repeats, warm_up=0)
        for name, time in times.items():
            costs = _cost(model, prompt, engine_methods(ratio)[WORK[name]], store)
            records.append({"length": len(prompt), "way": name, **vars(time), **costs})
    return records


def by_cached_share(model: PreTrainedModel, prompt: Prompt, shares: Sequence[float], repeats: int) -> Records:
    """Measure a prompt whose first blocks come from the store, while the others are encoded within the time.

    Records {share, blocks, p5, p50, p95 (seconds), n, flops}; `share` is of the context's tokens, in whole blocks.
    """
    store = filled_store(model, prompt.context)
    lengths = [len(block) for block in prompt.context]
    counts = sorted({round(share * len(lengths)) for share in shares})
    views = {count: partial_store(model, prompt.context, store, count) for count in counts}
    jobs = {count: partial(first_token, model, prompt, "block", view) for count, view in views.items()}
    times = interleaved(jobs, model.device, repeats)
    shape = cost.shape_of(model)
    cached = _cost(model, prompt, Reuse(), store)["flops"]
    records = []
    for count in counts:
        encoding = cost.encoding(shape, lengths[count:], model.dtype.itemsize).flops if lengths[count:] else 0.0
        share = sum(lengths[:count]) / sum(lengths)
        records.append({"share": share, "blocks": count, **vars(times[count]), "flops": cached + encoding})
    return records


def by_ratio(model: PreTrainedModel, prompt: Prompt, ratios: Sequence[float], repeats: int, select: Select) -> Records:
    """Measure reuse with a share of the document tokens recomputed.

    Ratio 0 selects nothing. Records {ratio, p5, p50, p95 (seconds), n, flops, bytes, rows}.
    """
    store = filled_store(model, prompt.context)
    methods = {ratio: Reuse(select=select if ratio else None, ratio=ratio) for ratio in ratios}
    jobs = {ratio: partial(first_token, model, prompt, method, store) for ratio, method in methods.items()}
    times = interleaved(jobs, model.device, repeats)
    return [{"ratio": at, **vars(times[at]), **_cost(model, prompt, methods[at], store)} for at in methods]


def _cost(model: PreTrainedModel, prompt: Prompt, method: Method, store: Store) -> dict[str, float]:
    """Compute FLOPs and bytes of one request, selection included."""
    (start,) = method.begin(model, [prompt], store)
    costs = cost.of_passes(cost.shape_of(model), start.passes, start.reused, model.dtype.itemsize)
    return {"flops": costs.flops, "bytes": costs.bytes, "rows": float(start.computed)}


def timings(records: Sequence[Mapping[str, Any]], question: int, *varied: str) -> Records:
    """Return records of this module as rows of `results.Timing`; `varied` names the fields that were varied."""
    rows = []
    for r in records:
        setting = {"question": question} | {name: r[name] for name in ("length", *varied) if name in r}
        times = {name: r[old] * 1e3 for name, old in TIMES.items() if r.get(old) is not None}
        costs = {name: r[name] for name in ("flops", "bytes") if r.get(name) is not None}
        about = {"workload": ", ".join(f"{name} {setting[name]:g}" for name in (varied or ("length",)))}
        rows.append({**about, "candidate": r.get("way", "block"), **times, "runs": r["n"], **costs, "setting": setting})
    return rows


FULL = "full attention"
TIERS = ("memory", "disk")


def methods(ratio: float) -> dict[str, Method]:
    """Return reuse without and with recomputation of a share of the tokens, by name."""
    return {"reuse": Reuse(), f"reuse, {ratio:.0%} recomputed": Reuse(select=QueryGuided(), ratio=ratio)}


def over_tiers(
    loaded: Loaded,
    prompts: Sequence[Prompt],
    folder: Path,
    repeats: int = 5,
    ratio: float = FUSION_RAG["ratio"],
) -> Records:
    """Return one row of `results.Timing` per prompt and candidate: the workload is the number of tokens.

    `folder` is filled with the prompts' blocks. Raises BadInput if it cannot be written.
    """
    model = loaded.model
    stores: dict[str, Any] = {"memory": MemoryStore(UNLIMITED), "disk": FolderStore(folder, new=True)}
    rows: Records = []
    for prompt in prompts:
        for store in stores.values():
            first_token(model, prompt, Reuse(), store)
        jobs: dict[str, Any] = {FULL: partial(first_token, model, prompt, "full")}
        for tier, store in stores.items():
            for name, method in methods(ratio).items():
                jobs[f"{tier}: {name}"] = partial(first_token, model, prompt, method, ReadOnlyStore(store))
        for label, times in interleaved(jobs, model.device, repeats).items():
            tier, _, name = label.rpartition(": ")
            about: dict[str, Any] = {"mode": "block", "setting": {"tier": tier}} if tier else {"mode": "full"}
            about |= {"select": "query_guided", "ratio": ratio} if "recomputed" in name else {}
            ends = {end: 1e3 * getattr(times, end) for end in ("p5", "p95")}
            columns = {"ms": 1e3 * times.p50, **ends, "runs": repeats}
            named = {"workload": str(len(prompt)), "candidate": f"{name}, from {tier}" if tier else name}
            rows.append({**named, **about, **columns, "bytes": float(_bytes(loaded, prompt) if tier else 0)})
    return rows


def _bytes(loaded: Loaded, prompt: Prompt) -> int:
    """Return the size of a prompt's cached blocks in bytes."""
    spec = loaded.spec
    tokens = len(prompt) - len(prompt.question)
    return sum(2 * heads * width for heads, width in spec.shapes) * spec.dtype.itemsize * tokens
