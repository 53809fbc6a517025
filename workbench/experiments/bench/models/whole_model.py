"""Whole models on one GPU: a random model of a real shape, candidates that run one after another, and their times.

Each candidate has the GPU's memory to itself. Times are taken by the host, from an idle device until it is idle again,
so they include all that a request needs: page tables, copies, and the transfer of the token to the host.
"""

import gc
import json
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, PreTrainedModel

from workbench.core.blocks import Block
from workbench.engine.forward import PrefillOutput
from workbench.engine.graphs.graph_step import Captured
from workbench.engine.pages.paged_pool import Pool
from workbench.experiments.bench import timing
from workbench.experiments.bench.kernels.workloads import KernelWorkload
from workbench.experiments.bench.run import result
from workbench.experiments.bench.timing import Roof
from workbench.metrics.cost import shape_of
from workbench.metrics.latency import measure
from workbench.metrics.published_numbers import LLAMA_3_8B
from workbench.models.transformers_attention import cache_argument

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
DTYPE = torch.bfloat16 if GPU else torch.float32
LLAMA: dict[str, Any] = LLAMA_3_8B | {  # meta-llama/Llama-3.1-8B
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {
        "rope_type": "llama3",
        "rope_theta": 5e5,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}

# A minimal model of Llama's architecture, for runs on a CPU.
TINY = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
TINY |= {"num_key_value_heads": 2, "head_dim": 16, "vocab_size": 97}

Sample = Callable[[], float]  # one measurement, milliseconds


@dataclass
class Candidate:
    """One candidate for the work, ours or a baseline.

    `begin` sets it up and returns a function that takes one time. The first time counts only if `begin` has `warmed`
    up. `facts` are filled in during the run, for readers of the report.
    """

    name: str
    begin: Callable[["Candidate"], Sample]
    runs: int = 10
    warmed: bool = False
    facts: dict[str, Any] = field(default_factory=dict)
    after: ExitStack = field(default_factory=ExitStack)  #: closed after the measurement


Comparison = tuple[KernelWorkload, list[Candidate]]


@dataclass(frozen=True)
class Scene:
    """Arguments of every operation: the model, tokens of a `unit` (1024; tests use fewer), requested baselines.

    tuning   time variants of the default, in place of the baselines
    runs     minimum number of timed runs of each candidate
    """

    model: PreTrainedModel
    against: list[str]
    unit: int = 1024
    tuning: bool = False
    runs: int = 0

    def ids(self, count: int) -> torch.Tensor:
        """Draw token ids [count] on the CPU."""
        draw = torch.Generator().manual_seed(count)
        return torch.randint(self.model.config.vocab_size, (count,), generator=draw)

    def flops(self, rows: int, pairs: float, heads: int = 1) -> float:
        """Count the FLOPs of `rows` rows attending to `pairs` keys in total, in each layer; `heads` rows get logits."""
        shape = shape_of(self.model)
        return 2.0 * (shape.linear * rows + shape.head * heads) + 4.0 * sum(shape.query_width) * pairs

    def bytes(self, tokens: int) -> float:
        """Count the bytes of the weights that a pass reads, and of keys and values of `tokens`."""
        shape = shape_of(self.model)
        return float(self.model.dtype.itemsize * (shape.linear + shape.head + tokens * sum(shape.kv_width)))


def build(shape: Mapping[str, Any] = LLAMA, seed: int = 0) -> PreTrainedModel:
    """Return a random model on the device."""
    torch.manual_seed(seed)
    config = AutoConfig.for_model("llama", **shape)
    with torch.device(DEVICE):
        model = AutoModelForCausalLM.from_config(config, dtype=DTYPE, attn_implementation="sdpa")
    return model.to(DEVICE).eval()


def scene_of(tiny: bool = False, unit: int = 64) -> Scene:
    """Return a scene without baselines; with `tiny`, of the smallest shape, and with units of `unit` tokens."""
    return Scene(build(LLAMA | TINY), [], unit) if tiny else Scene(build(), [])


def clock(work: Callable[[], Any]) -> float:
    """Measure the milliseconds from an idle device until it is idle again."""
    return measure([work], torch.device(DEVICE), warm_up=0).p50 * 1e3


def measure_workload(work: KernelWorkload, candidates: list[Candidate], ceiling: Roof, runs: int = 0) -> dict[str, Any]:
    """Return the entry of a workload after running its candidates one by one; tracebacks of failures go to stderr."""
    times: dict[str, timing.Time | str] = {}
    for candidate in candidates:
        work.candidates[candidate.name] = []
        begin = time.perf_counter()
        sample = None
        try:
            sample = candidate.begin(candidate)
            first = None if candidate.warmed else sample()
            candidate.facts["ready_s"] = time.perf_counter() - begin  # setup and the first run
            times[candidate.name] = timing.summarise_ms([sample() for _ in range(max(candidate.runs, runs))])
            candidate.facts["first_ms"] = first
        except Exception as problem:  # out of memory, or a backend that rejects the shape
            traceback.print_exc()
            times[candidate.name] = timing.reason(problem)
        sample = None
        print(json.dumps({"done": candidate.name} | candidate.facts, default=str), file=sys.stderr, flush=True)
        candidate.after.close()
        gc.collect()
        if GPU:
            candidate.facts["peak_gb"] = torch.cuda.max_memory_allocated() / 1e9
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
    entry = result(work, times, ceiling)
    for row, candidate in zip(entry["contestants"], candidates, strict=True):
        row.update(candidate.facts)
    return entry


BLOCK = 512  # tokens of a cached block


def filled_pool(scene: Scene, context: int, own: int, facts: dict[str, Any], block: int = 0) -> tuple[Pool, list[Any]]:
    """Return a pool with a context of blocks (of BLOCK tokens), and a reserve of `own` tokens.

    The blocks are in a different order than they were encoded; `facts` get the encoding time.
    """
    ids = scene.ids(context).split(block or min(BLOCK, scene.unit))
    pool = Pool(scene.model, 2 + sum(-(-len(run) // 64) for run in ids) + -(-own // 64))
    blocks = [Block(tuple(run.tolist())) for run in ids]
    cached: list[Any] = []
    facts["encode_s"] = clock(lambda: cached.extend(pool.encode(scene.model, blocks))) / 1e3
    return pool, cached[::-1]


def token_of(output: PrefillOutput, candidate: Candidate) -> int:
    """Return the next token of a prefill, and record its attention backends."""
    assert output.logits is not None
    candidate.facts["executors"] = sorted(set(output.backends.values()))
    return int(output.logits[-1].argmax())


def describe(candidate: Candidate, captured: Captured) -> None:
    """Record the time to capture a graph, and its attention backend."""
    candidate.facts |= {"warm_up_s": captured.warm_up, "capture_s": captured.capture}
    candidate.facts["executors"] = [captured.batch.backend]


BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}


def backend(name: str) -> AbstractContextManager[Any]:
    """Select torch's attention by name; "" leaves the selection to torch."""
    return sdpa_kernel(BACKENDS[name]) if name else nullcontext()


def prefill_whole(scene: Scene, count: int, name: str, candidate: Candidate) -> Sample:
    """Compute the whole prompt."""

    def first_token(ids: Tensor) -> int:
        scene.model.set_attn_implementation("sdpa")
        with backend(name), torch.no_grad():
            return int(scene.model(ids, use_cache=True, logits_to_keep=1).logits[0, -1].argmax())

    ids = scene.ids(count).to(DEVICE)[None]
    if candidate.warmed:
        first_token(ids[:, : 8 * scene.unit])
    return lambda: clock(partial(first_token, ids))


def encode_batched(scene: Scene, count: int, size: int, name: str, _: Candidate) -> Sample:
    """Compute prompts of `size` tokens in one batch of `count` tokens in total, and keep their keys and values."""
    ids = scene.ids(count).to(DEVICE).view(-1, size)

    def last_token() -> int:
        scene.model.set_attn_implementation("sdpa")
        with backend(name), torch.no_grad():
            return int(scene.model(ids, use_cache=True, logits_to_keep=1).logits[-1, -1].argmax())

    return partial(clock, last_token)


def prefix(scene: Scene, context: int, question: int, _: Candidate) -> Sample:
    """Compute the question over a ready cache of the same context."""
    cache, ids = cache_of(scene.model, 1, context), scene.ids(question).to(DEVICE)[None]

    def first_token() -> int:
        scene.model.set_attn_implementation("sdpa")
        with torch.no_grad():
            out = scene.model(ids, **cache_argument(scene.model, cache), logits_to_keep=1)
        cache.crop(-question)
        return int(out.logits[0, -1].argmax())

    return partial(clock, first_token)


def cache_of(model: PreTrainedModel, batch: int, length: int) -> DynamicCache:
    """Return a cache of random numbers, which needs no prefill."""
    config, cache = model.config, DynamicCache(config=model.config)
    shape = batch, config.num_key_value_heads, length, config.head_dim
    for layer in range(config.num_hidden_layers):
        keys, values = (torch.randn(shape, dtype=model.dtype, device=DEVICE) for _ in range(2))
        cache.update(keys, values, layer)
    return cache


def answers(scene: Scene, context: int, batch: int, _: Candidate) -> Sample:
    """Decode with a separate cache per request, as transformers does."""
    cache = cache_of(scene.model, batch, context)
    ids = scene.ids(batch).to(DEVICE)[:, None]

    def step() -> None:
        scene.model.set_attn_implementation("sdpa")
        with torch.no_grad():
            logits = scene.model(ids, **cache_argument(scene.model, cache), logits_to_keep=1).logits
        ids.copy_(logits[:, -1:].argmax(-1))

    return partial(clock, step)
