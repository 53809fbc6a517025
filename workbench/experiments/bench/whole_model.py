"""Whole models on one card: a random one of a real shape, contestants that run one after another, and their times.

Each contestant has the card's memory to itself. Times are taken by the host, from an idle device until it is idle
again, so all that a request needs is in them: page tables, copies, the token on its way to the host.
"""

import gc
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from workbench.experiments.bench import timing
from workbench.experiments.bench.run import result
from workbench.experiments.bench.timing import Roof
from workbench.experiments.bench.workloads import Workload

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
DTYPE = torch.bfloat16 if GPU else torch.float32
LLAMA: dict[str, Any] = {  # meta-llama/Llama-3.1-8B
    "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256, "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
    "rope_parameters": {
        "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}  # fmt: skip

Sample = Callable[[], float]  # one measurement, milliseconds


@dataclass
class Contestant:
    """One way to do the work: `begin` prepares it and gives a function that takes one time. The first time is counted
    where `begin` has `warmed` up. `facts`: what a reader should know of it besides, filled in as it runs."""

    who: str
    begin: Callable[["Contestant"], Sample]
    runs: int = 10
    warmed: bool = False
    facts: dict[str, Any] = field(default_factory=dict)
    after: ExitStack = field(default_factory=ExitStack)  # closed when it is done


Entry = tuple[Workload, list[Contestant]]  # what is measured, and who does it


@dataclass(frozen=True)
class Scene:
    """What every operation is given: the model, tokens of a `unit` (1024; tests take fewer), stock peers asked for."""

    model: PreTrainedModel
    against: list[str]
    unit: int = 1024

    def ids(self, count: int) -> torch.Tensor:
        """[count] token ids, on the CPU."""
        draw = torch.Generator().manual_seed(count)
        return torch.randint(self.model.config.vocab_size, (count,), generator=draw)

    def flops(self, rows: int, pairs: float, heads: int = 1) -> float:
        """Of `rows` rows that see `pairs` keys in all, in every layer; `heads`: rows that get logits."""
        config = self.model.config
        attention = 4.0 * config.num_attention_heads * config.head_dim * pairs * config.num_hidden_layers
        return 2.0 * self.inner * rows + attention + 2.0 * config.vocab_size * config.hidden_size * heads

    @property
    def inner(self) -> int:
        """Parameters of the layers."""
        return sum(p.numel() for p in self.model.model.layers.parameters())

    def bytes(self, tokens: int) -> float:
        """The weights that a pass reads, and keys and values of `tokens`."""
        config, size = self.model.config, self.model.dtype.itemsize
        weights = (self.inner + config.vocab_size * config.hidden_size) * size
        return weights + 2.0 * tokens * config.num_key_value_heads * config.head_dim * config.num_hidden_layers * size


def build(shape: Mapping[str, Any] = LLAMA, seed: int = 0) -> PreTrainedModel:
    """A random model, made on the device."""
    torch.manual_seed(seed)
    config = AutoConfig.for_model("llama", **shape)
    with torch.device(DEVICE):
        model = AutoModelForCausalLM.from_config(config, dtype=DTYPE, attn_implementation="sdpa")
    return model.to(DEVICE).eval()


def clock(work: Callable[[], Any]) -> float:
    """Milliseconds from an idle device until it is idle again."""
    wait()
    begin = time.perf_counter()
    work()
    wait()
    return (time.perf_counter() - begin) * 1e3


def wait() -> None:
    if GPU:
        torch.cuda.synchronize()


def measured(work: Workload, contestants: list[Contestant], ceiling: Roof) -> dict[str, Any]:
    """Contestants one after another; each begins with the card's memory to itself. Why one cannot run is told in full
    on stderr."""
    taken: dict[str, timing.Time | str] = {}
    for one in contestants:
        work.contestants[one.who] = []
        begin, sample = time.perf_counter(), None
        try:
            sample = one.begin(one)
            first = [] if one.warmed else [sample()]
            one.facts["ready_s"] = time.perf_counter() - begin  # preparation and the first run
            taken[one.who] = timing.of([sample() for _ in range(one.runs)])
            one.facts["first_ms"] = first[0] if first else None
        except Exception as problem:  # out of memory, or a backend that refuses the shape
            traceback.print_exc()
            taken[one.who] = f"{type(problem).__name__}: {' '.join(str(problem).split())[:200]}"
        sample = None
        one.after.close()
        gc.collect()
        if GPU:
            one.facts["peak_gb"] = torch.cuda.max_memory_allocated() / 1e9
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
    found = result(work, taken, ceiling)
    for entry, one in zip(found["contestants"], contestants, strict=True):
        entry.update(one.facts)
    return found
