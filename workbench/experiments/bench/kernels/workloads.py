"""A workload of a kernel, and what all of them share: shapes of the papers' headline figures, random bf16 numbers.

`page_workloads` holds those of the kernels, `choices` those of choosing tiles.

Lengths count in `unit`s, 1024 tokens; tests take fewer. A workload holds one callable for every candidate and set of
inputs; the kernel itself is called "ours". `flops` and `bytes` count what the work cannot do without: products of rows
with keys that they see, and every key, value, query and result once.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from workbench.experiments.bench import baselines, named
from workbench.experiments.bench.kernels.variants import Variant

Call = Callable[[], Any]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float32  # the interpreter cannot multiply bf16
HEADS, WIDTH, PAGE = (32, 8), 128, 128
CHUNK = (8, 16, 4)  # requests, query heads, KV heads: one GPU's part of CompactAttention's headline
COLD = 4 * 60 << 20  # bytes of inputs in all sets: four times the largest L2 cache


@dataclass
class KernelWorkload:
    """One shape of a kernel. `shape` describes it for a reader; `candidates` are ours and its baselines."""

    name: str
    shape: dict[str, Any]
    flops: float
    bytes: float
    candidates: dict[str, list[Call]] = field(default_factory=dict)

    def enter(self, name: str, make: Callable[..., Call], *arguments: Any) -> None:
        """Add one set of inputs for a candidate: `make(*arguments)`, called when it is first run.

        Inputs that are never run are not prepared; a baseline that is missing, or refuses the shape, says so when it is
        run.
        """
        made = cache(partial(make, *arguments))
        self.candidates.setdefault(name, []).append(lambda: made()())

    def enter_ours(self, kernel: str, variants: Sequence[Variant], *arguments: Any) -> None:
        """Add a kernel of ours, with every launch that is tried besides."""
        for name, variant in labelled(variants):
            self.enter(name, ours, kernel, variant, *arguments)

    def enter_torch(
        self, against: Sequence[str], q: Tensor, k: Tensor, v: Tensor, causal: bool = False, label: str = ""
    ) -> None:
        """Add PyTorch's attention by those of its backends that are asked for; `label` follows their names."""
        for name in ("flash", "cudnn"):
            if name in against:
                self.enter(name + label, baselines.torchs, name, q, k, v, causal)

    def enter_dense(self, against: Sequence[str], q: Tensor, k: Tensor, v: Tensor) -> None:
        """Add baselines that compute every row of the prompt, for want of a better method."""
        self.enter_torch(against, q, k, v, True, ", dense")
        if "flashinfer" in against:
            self.enter("flashinfer, dense", baselines.flashinfer_dense, q, k, v)


def numbers(*shape: int) -> Tensor:
    """Draw normal numbers."""
    return torch.randn(shape, device=DEVICE, dtype=DTYPE)


def frequencies() -> Tensor:
    """Return the frequencies of rotary embedding, as Llama 3 has them."""
    return 5e5 ** (-torch.arange(0, WIDTH, 2, device=DEVICE) / WIDTH)


def sets(traffic: float) -> range:
    """Return one entry for every set of inputs that together are larger than the cache; `traffic`: bytes of one set."""
    return range(max(1, min(8, -(-COLD // int(traffic)))))


def labelled(variants: Sequence[Variant]) -> Iterator[tuple[str, Variant]]:
    """Name the kernel's own launch "ours", and every launch that is tried besides by its keywords."""
    yield "ours", {}
    for variant in variants:
        words = [f"{value}" if name == "config" else f"{value} {name}" for name, value in variant.items()]
        yield f"ours, {', '.join(words)}", variant


def ours(kernel: str, variant: Variant, *arguments: Any) -> Call:
    """Prepare one launch of a kernel."""
    return partial(named(kernel).launch, *arguments, **variant)
