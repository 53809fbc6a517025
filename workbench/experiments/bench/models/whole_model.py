"""Whole models on one GPU: a random one of a real shape, candidates that run one after another, and their times.

Each candidate has the GPU's memory to itself. The host takes the times, from an idle device until it is idle again.
They therefore contain all that a request needs: page tables, copies, the token on its way to the host.
"""

import gc
import json
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from workbench.experiments.bench import timing
from workbench.experiments.bench.kernels.workloads import KernelWorkload
from workbench.experiments.bench.run import result
from workbench.experiments.bench.timing import Roof
from workbench.metrics.cost import shape_of
from workbench.metrics.latency import measure
from workbench.metrics.published_numbers import LLAMA_3_8B

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

Sample = Callable[[], float]  # one measurement, milliseconds


@dataclass
class Candidate:
    """One method to do the work, of ours or a baseline.

    `begin` prepares it and returns a function that takes one time; the first time counts only where `begin` has
    `warmed` up. `facts` are filled in as it runs, for a reader of the report.
    """

    name: str
    begin: Callable[["Candidate"], Sample]
    runs: int = 10
    warmed: bool = False
    facts: dict[str, Any] = field(default_factory=dict)
    after: ExitStack = field(default_factory=ExitStack)  # closed when it is done


Comparison = tuple[KernelWorkload, list[Candidate]]


@dataclass(frozen=True)
class Scene:
    """The arguments of every operation: the model, tokens of a `unit` (1024; tests take fewer), baselines asked for.

    tuning   what is tried beside the default is timed, in place of the baselines
    runs     timed runs of every candidate, at least
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
        """Count the operations of `rows` rows that see `pairs` keys in all, in every layer; `heads` rows get logits."""
        shape = shape_of(self.model)
        return 2.0 * (shape.linear * rows + shape.head * heads) + 4.0 * sum(shape.query_width) * pairs

    def bytes(self, tokens: int) -> float:
        """Count the bytes of the weights that a pass reads, and of keys and values of `tokens`."""
        shape = shape_of(self.model)
        return float(self.model.dtype.itemsize * (shape.linear + shape.head + tokens * sum(shape.kv_width)))


def build(shape: Mapping[str, Any] = LLAMA, seed: int = 0) -> PreTrainedModel:
    """Make a random model on the device."""
    torch.manual_seed(seed)
    config = AutoConfig.for_model("llama", **shape)
    with torch.device(DEVICE):
        model = AutoModelForCausalLM.from_config(config, dtype=DTYPE, attn_implementation="sdpa")
    return model.to(DEVICE).eval()


def clock(work: Callable[[], Any]) -> float:
    """Measure the milliseconds from an idle device until it is idle again."""
    return measure([work], torch.device(DEVICE), warm_up=0).p50 * 1e3


def measured(work: KernelWorkload, candidates: list[Candidate], ceiling: Roof, runs: int = 0) -> dict[str, Any]:
    """Return the entry of a workload, its candidates run one by one; tracebacks of those that fail go to stderr."""
    times: dict[str, timing.Time | str] = {}
    for candidate in candidates:
        work.candidates[candidate.name] = []
        begin = time.perf_counter()
        sample = None
        try:
            sample = candidate.begin(candidate)
            first = None if candidate.warmed else sample()
            candidate.facts["ready_s"] = time.perf_counter() - begin  # preparation and the first run
            times[candidate.name] = timing.of([sample() for _ in range(max(candidate.runs, runs))])
            candidate.facts["first_ms"] = first
        except Exception as problem:  # out of memory, or a backend that refuses the shape
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
