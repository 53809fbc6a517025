"""Common parts of kernel workloads: shapes of the papers' headline figures, random bf16 inputs.

Workloads of the kernels are in `page_workloads`, those that select tiles in `choices`.

Lengths count in `unit`s of 1024 tokens; tests use fewer. A workload has one callable per candidate and set of inputs;
the kernel itself is called "ours". `flops` and `bytes` count the minimum work: products of rows with keys that they
attend to, and each key, value, query and result once.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from workbench.core.plan import Site
from workbench.core.tiling.tiles import Grid, Tiles
from workbench.experiments.bench import baselines, workload_module
from workbench.kernels._shared.attention import Config


@dataclass
class CountingSparse:
    """Wrapper of a sparse method that counts the tiles it keeps, on the device."""

    over: Any
    counts: list[Tensor] = field(default_factory=list)  #: [2] per call: kept and causal tiles

    @property
    def size(self) -> int:
        return int(self.over.size)

    @property
    def rows_together(self) -> int:
        return int(getattr(self.over, "rows_together", 0))

    def __call__(self, queries: Tensor, keys: Tensor, rows: Tensor, site: Site) -> Tiles:
        tiles: Tiles = self.over(queries, keys, rows, site)
        causal = Grid(rows.to(keys.device), keys.shape[1], self.size).causal.sum() * len(queries)
        self.counts.append(torch.stack((tiles.kept.sum(), causal)))
        return tiles

    @property
    def density(self) -> float:
        """Return the share of the causal tiles that was kept, and reset the counts."""
        kept, causal = torch.stack(self.counts).sum(0).tolist()
        self.counts = []
        return kept / causal


Variant = Mapping[str, Any]  # keywords of `launch`: `config`, `splits`


def _configs(text: str) -> list[Variant]:
    """Parse configurations: query rows x keys, warps, stages, and "d" for descriptors."""
    entries = (entry.replace("x", " ").split() for entry in text.split(","))
    return [{"config": Config(*map(int, sizes[:4]), descriptors=sizes[4:] == ["d"])} for sizes in entries]


TALL = _configs("128x64 8 2, 128x64 8 4, 128x128 8 2, 64x64 4 2, 64x64 4 3, 64x128 4 2, 128x32 8 4, 256x64 8 2")
SHORT = _configs("16x128 4 2, 16x128 4 4, 16x64 4 4, 16x128 8 3")
DESCRIBED = _configs(
    "128x64 8 3, 128x64 8 2 d, 128x64 8 4 d, 128x128 8 2 d, 128x128 8 3 d, 64x64 4 2 d, 64x64 4 3 d, 64x128 4 2 d, "
    "128x64 4 3 d, 128x128 8 2"
)
PRODUCTS = _configs("128x128 8 4 d, 128x128 8 3, 128x128 4 3 d, 128x256 8 3 d, 256x128 8 3 d, 64x128 4 4 d")
MEANS = _configs("128x128 8 3, 128x64 4 2, 128x64 4 3, 128x128 4 2")
SPLITS: list[Variant] = [{"splits": count} for count in (4, 8, 16, 32)]
BOTH: list[Variant] = [{"config": Config(128, 64, 8, 2), "splits": 16}, {"config": Config(64, 64, 4, 3), "splits": 8}]

VARIANTS: Mapping[str, Sequence[Variant]] = {
    "choose_bfla": PRODUCTS,
    "choose_flash_prefill": MEANS,
    "choose_xattention": PRODUCTS,
    "page_list_attention": DESCRIBED,
    "q_sparse_attention": TALL,
    "shared_attention": [{"hopper": False}, {"at_once": False}],
    "question_attention": [*SPLITS, *TALL, *SHORT, *BOTH],
    "tile_attention": DESCRIBED,
}


def variants(kernel: str) -> Sequence[Variant]:
    """Return the keywords of each launch to try; none for most kernels."""
    return VARIANTS.get(kernel, ())


Call = Callable[[], Any]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float32  # Triton's interpreter cannot multiply bf16
HEADS, WIDTH, PAGE = (32, 8), 128, 128
CHUNK = (8, 16, 4)  # requests, query heads, KV heads: one GPU's part of CompactAttention's headline figure
COLD = 4 * 60 << 20  # bytes of all input sets: four times the largest L2 cache


@dataclass
class KernelWorkload:
    """One shape of a kernel. `shape` describes it for readers; `candidates` are ours and its baselines."""

    name: str
    shape: dict[str, Any]
    flops: float
    bytes: float
    candidates: dict[str, list[Call]] = field(default_factory=dict)

    def enter(self, name: str, make: Callable[..., Call], *arguments: Any) -> None:
        """Add one set of inputs for a candidate: `make(*arguments)`, called when it first runs.

        Inputs that are not run are not built. A baseline that is missing or rejects the shape raises when it runs.
        """
        call = cache(partial(make, *arguments))
        self.candidates.setdefault(name, []).append(lambda: call()())

    def enter_ours(self, kernel: str, variants: Sequence[Variant], *arguments: Any) -> None:
        """Add our kernel, with each launch to try besides the default."""
        for name, variant in labelled(variants):
            self.enter(name, kernel_call, kernel, variant, *arguments)

    def enter_torch(
        self, against: Sequence[str], q: Tensor, k: Tensor, v: Tensor, causal: bool = False, label: str = ""
    ) -> None:
        """Add PyTorch's attention with the requested backends; `label` follows their names."""
        for name in ("flash", "cudnn"):
            if name in against:
                self.enter(name + label, baselines.torchs, name, q, k, v, causal)

    def enter_dense(self, against: Sequence[str], q: Tensor, k: Tensor, v: Tensor) -> None:
        """Add baselines that compute the whole prompt, for lack of a better method."""
        self.enter_torch(against, q, k, v, True, ", dense")
        if "flashinfer" in against:
            self.enter("flashinfer, dense", baselines.flashinfer_dense, q, k, v)


def numbers(*shape: int) -> Tensor:
    """Draw normally distributed numbers."""
    return torch.randn(shape, device=DEVICE, dtype=DTYPE)


def frequencies() -> Tensor:
    """Return the rotary frequencies of Llama 3."""
    return 5e5 ** (-torch.arange(0, WIDTH, 2, device=DEVICE) / WIDTH)


def sets(traffic: float) -> range:
    """Return one index per set of inputs that together exceed the cache; `traffic` is the bytes of one set."""
    return range(max(1, min(8, -(-COLD // int(traffic)))))


def labelled(variants: Sequence[Variant]) -> Iterator[tuple[str, Variant]]:
    """Name the default launch "ours", and each other launch by its keywords."""
    yield "ours", {}
    for variant in variants:
        words = [f"{value}" if name == "config" else f"{value} {name}" for name, value in variant.items()]
        yield f"ours, {', '.join(words)}", variant


def kernel_call(kernel: str, variant: Variant, *arguments: Any) -> Call:
    """Return one launch of a kernel."""
    return partial(workload_module(kernel).launch, *arguments, **variant)
