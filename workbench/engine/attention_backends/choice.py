"""Backend dispatch for a request's attention over its contiguous KV: a kernel, or torch with a mask.

On a GPU, plain causal attention in bf16 or fp16 runs on the workbench's kernels: `question_attention` for few query
tokens over a long cache, `tile_attention` otherwise, with or without tiles. Torch's `scaled_dot_product_attention` runs
what they do not support (other mask rules, sliding windows, single columns in addition to tiles, other tile sizes,
fp32), short prompts from their start, and longer ones if it was measured to be faster. On a CPU torch runs everything:
selected tiles per query tile, and a question over a long cache without a mask (`attention_backends.attention`).
`PrefillOutput.backends` names the backend of each layer.

`Plan(backend=choice.backend_named("tile_attention"))` requests one: it is used on any device (on a CPU under Triton's
interpreter), or BadInput is raised.

`data/benchmarks/attention_backends.py` times the kernels against torch's cuDNN and FlashAttention 2, and writes a row
per shape: {work, heads, width, length, times: {name: ms}}. A GPU is looked up by its name, then by its compute
capability; if neither is in the file, the default is used. Another backend must be faster than the workbench's kernel
by GAIN, as cuDNN also builds a plan for each new length.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import import_module
from importlib.util import find_spec
from math import log2
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from workbench.core.errors import BadInput, format_value
from workbench.core.masks import Sees
from workbench.core.page_table import INVALID_POS, Paged
from workbench.core.rope import Pairing
from workbench.core.tiling.tiles import Tiles
from workbench.data.assets import ROOT
from workbench.engine.attention_backends.attention_problem import AttentionProblem

FILE = ROOT / "benchmarks" / "attention_backends.json"
GAIN = 0.03  # minimum speedup of a baseline
FEW = 256  # up to this many rows times query heads per KV head, question_attention attends over pages
NEAR = 1.0  # maximum octaves between the requested length and a measured one


@cache
def tables(path: Path = FILE) -> Mapping[str, Any]:
    """Return the measurements, {name of a GPU: {"capability", "rows"}}; {} without a file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["gpus"]
        return found if isinstance(found, dict) else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def rows_for(name: str, capability: Sequence[int], path: Path = FILE) -> list[dict[str, Any]]:
    """Return the measured rows of a GPU, or of another GPU of its compute capability; [] if there are none."""
    known = tables(path)
    if name in known:
        return list(known[name]["rows"])
    alike = [gpu["rows"] for gpu in known.values() if list(gpu["capability"]) == list(capability)]
    return list(alike[0]) if alike else []


def fastest(rows: Sequence[Mapping[str, Any]], work: str, group: int, width: int, length: int, own: str) -> str:
    """Return the name of the fastest backend for `work` at about this length; `own` if it was not measured.

    Only rows with the same head width and group size, and a length within a factor of 2, are considered.
    """
    alike = [r for r in rows if r["work"] == work and r["width"] == width and r["heads"][0] // r["heads"][1] == group]
    near = min(alike, key=lambda r: abs(log2(r["length"] / length)), default=None)
    if near is None or abs(log2(near["length"] / length)) > NEAR or own not in near["times"]:
        return own
    best = min(near["times"], key=lambda name: near["times"][name])
    return best if near["times"][best] < (1 - GAIN) * near["times"][own] else own


@cache
def choice(device: torch.device, work: str, heads: tuple[int, int], width: int, length: int, own: str) -> str:
    """Return the name of the fastest backend on this device; `own` if it was not measured."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return own
    rows = rows_for(torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device))
    return fastest(rows, work, heads[0] // heads[1], width, length, own)


WIDTHS = (16, 256)  # head widths
TILES = (16, 32, 64, 128, 256)  # tokens of a tile
ROWS = 128  # rows of a program of tile_attention
PAGE = 128  # page size of the identity table for question_attention
SHORT = 1024  # shorter whole prompts run in torch, with a single launch
Scale = float | None  # of the logits; None: 1/sqrt(D)


@dataclass(frozen=True)
class Torch:
    """Torch's scaled_dot_product_attention, with a mask if needed; run by the request itself."""

    name = "torch"

    def refuses(self, problem: AttentionProblem) -> str:
        return ""


class _Kernel:
    name = ""

    def refuses(self, problem: AttentionProblem) -> str:
        """Return why the backend cannot solve the problem; "" if it can."""
        if not problem.causal:
            return "it supports plain causal attention, no other mask rule"
        if problem.windowed:
            return "it supports no sliding window"
        if problem.columns:
            return "it supports whole tiles, no single columns"
        if not WIDTHS[0] <= problem.width <= WIDTHS[1]:
            return f"head width is {problem.width}, it supports {WIDTHS[0]} to {WIDTHS[1]}"
        if problem.dtype not in (torch.bfloat16, torch.float16, torch.float32):
            return f"dtype is {problem.dtype}, it supports bf16, fp16 and fp32"
        return "" if _triton() else "Triton is not installed"


@dataclass(frozen=True)
class QuestionAttention(_Kernel):
    """The kernel for few query tokens over a long cache; splits the keys among programs."""

    name = "question_attention"

    def refuses(self, problem: AttentionProblem) -> str:
        return "it supports no tiles: use tile_attention" if problem.tile else super().refuses(problem)

    def __call__(
        self, q: Tensor, keys: Tensor, values: Tensor, rows: Tensor, sees: Sees, tiles: Tiles | None, scale: Scale
    ) -> Tensor:
        pages = identity(keys.shape[1], keys.device)
        return kernel(self.name).launch(q[None], keys, values, rows[None], pages, scale=scale)[0]


@dataclass(frozen=True)
class TileAttention(_Kernel):
    """The kernel for many query tokens, dense or over selected tiles.

    Tiles that are `alike` for all query tiles (CompactAttention) are passed as one list per group of heads.
    """

    name = "tile_attention"

    def refuses(self, problem: AttentionProblem) -> str:
        if problem.tile and problem.tile not in TILES:
            return f"tiles have {problem.tile} tokens, it supports {', '.join(map(str, TILES))}"
        return super().refuses(problem)

    def __call__(
        self, q: Tensor, keys: Tensor, values: Tensor, rows: Tensor, sees: Sees, tiles: Tiles | None, scale: Scale
    ) -> Tensor:
        module, arguments = kernel(self.name), (q[None], keys[None], values[None], rows[None])
        if tiles is None:
            return module.launch(*arguments, scale=scale)[0]
        if not tiles.alike:
            lists = kernel("_pages.lists").tile_lists(tiles, q.shape[1], keys.shape[1])
            return module.launch(*arguments, *lists, tiles.size, tiles.size, scale)[0]
        last, length = -(-q.shape[1] // tiles.size), -(-keys.shape[1] // tiles.size)
        lists = kernel("_pages.lists").lists_of(tiles.kept[:: tiles.shared, last - 1 : last, :length])
        return module.launch(*arguments, *lists, tiles.size, q.shape[1], scale)[0]


@dataclass(frozen=True)
class WholePrompt(_Kernel):
    """A torch kernel for a prompt from its start: FlashAttention 2 ("flash") or cuDNN ("cudnn")."""

    name: str

    def refuses(self, problem: AttentionProblem) -> str:
        if not problem.whole or problem.tile:
            return "it supports whole prompts without tiles only"
        if problem.device.type != "cuda" or problem.dtype == torch.float32:
            return "it needs a GPU, and bf16 or fp16"
        return super().refuses(problem)

    def __call__(
        self, q: Tensor, keys: Tensor, values: Tensor, rows: Tensor, sees: Sees, tiles: Tiles | None, scale: Scale
    ) -> Tensor:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION if self.name == "cudnn" else SDPBackend.FLASH_ATTENTION):
            found = scaled_dot_product_attention(
                q[None], keys[None], values[None], is_causal=True, scale=scale, enable_gqa=True
            )
        return found[0]


TORCH = Torch()
WHOLE = {name: WholePrompt(name) for name in ("cudnn", "flash")}
KERNELS = (QuestionAttention(), TileAttention())


def backend_named(name: str) -> QuestionAttention | TileAttention:
    """Return a kernel for `Plan.backend`: "question_attention" or "tile_attention". Raises BadInput for others."""
    for backend in KERNELS:
        if backend.name == name:
            return backend
    raise BadInput(f"backend is {name!r}: it is one of {', '.join(backend.name for backend in KERNELS)}")


def backend_for(problem: AttentionProblem) -> Torch | QuestionAttention | TileAttention | WholePrompt:
    """Return the backend of `problem` for plans that name none, by the rules in the module docstring."""
    if not on_gpu(problem.device) or problem.dtype == torch.float32:
        return TORCH
    if problem.whole and problem.rows < SHORT and not problem.tile:
        return TORCH
    few = few_programs(problem.rows, problem.heads[0], problem.device, waves=1)
    chosen: Any = KERNELS[0] if few and not problem.tile else KERNELS[1]
    if problem.whole and not few and not problem.tile:
        name = choice(problem.device, "dense", problem.heads, problem.width, problem.length, chosen.name)
        chosen = WHOLE.get(name, chosen)
    return TORCH if chosen.refuses(problem) else chosen


def few_programs(rows: int, heads: int, device: torch.device, waves: int = 2) -> bool:
    """Return whether `tile_attention` has too few programs for these rows and heads to fill a GPU `waves` times.

    Then `question_attention` is faster, as it also splits the keys.
    """
    return on_gpu(device) and -(-rows // ROWS) * heads < waves * _processors(device)


def kernel_over_pages(rows: Sequence[int], heads: tuple[int, int], device: torch.device) -> str:
    """Return the name of the kernel for `rows` (requests, rows per request) over pages; `heads`: (query, KV) heads."""
    batch, each = rows
    few = each * heads[0] // heads[1] <= FEW or few_programs(each, heads[0] * batch, device)
    return "question_attention" if few else "q_sparse_attention"


def check_output(backend: Any, out: Any, q: Tensor, values: Tensor) -> None:
    """Raise BadInput unless a backend's output is [Hq, R, value width], of the dtype and device of queries `q`."""
    shape = (*q.shape[:2], values.shape[-1])
    expected = f"[heads, rows, width] = {shape} of {q.dtype} on {q.device} is needed"
    if not isinstance(out, Tensor):
        raise BadInput(f"backend {name_of(backend)} answers {format_value(out)}: {expected}")
    if (out.shape, out.dtype, out.device) != (shape, q.dtype, q.device):
        got = f"{tuple(out.shape)} of {out.dtype} on {out.device}"
        raise BadInput(f"backend {name_of(backend)} answers {got}: {expected}")


def check(backend: Any, problem: AttentionProblem) -> None:
    """Raise BadInput if a backend that the user requested does not support the problem."""
    refuses = getattr(backend, "refuses", None)  # a callable of the user has none
    if refuses and (reason := refuses(problem)):
        raise BadInput(f"{name_of(backend)} cannot run this plan: {reason}")


def name_of(backend: Any) -> str:
    """Return the name of a backend or callable."""
    return str(getattr(backend, "name", None) or getattr(backend, "__name__", type(backend).__name__))


def rerotate(keys: Tensor, distance: Tensor, inv_freq: Tensor, pairing: Pairing, out: Tensor, kernels: bool) -> None:
    """Rerotate `keys` [H, T, D] by `distance` [T] into `out`, with a kernel if `kernels`, else in torch."""
    module = kernel("rotate_keys")
    if kernels:
        module.launch(keys, distance, inv_freq, pairing, out=out)
    else:
        out.copy_(module.reference(keys, distance, inv_freq, pairing))


def on_gpu(device: torch.device) -> bool:
    """Return whether kernels are used on this device by default."""
    return device.type == "cuda" and _triton()


@lru_cache(maxsize=128)  # looked up per layer, for each request of a batch
def identity(length: int, device: torch.device) -> Paged:
    """Return a page table for a contiguous KV of `length` tokens, in which slot i has position i."""
    count = -(-length // PAGE)
    at = torch.arange(count * PAGE, dtype=torch.int32, device=device)
    pages = torch.arange(count, dtype=torch.int32, device=device)[None]
    first, last = pages * PAGE, pages * PAGE + PAGE - 1
    positions = at.masked_fill(at >= length, INVALID_POS).view(1, count, PAGE)
    return Paged(pages, positions, first, last.masked_fill(last >= length, INVALID_POS), partial_pages=False)


@lru_cache(maxsize=128)
def split_contiguous(length: int, first: int, end: int, device: torch.device) -> tuple[Paged, Paged]:
    """Return two page tables for a contiguous KV of `length` tokens: tokens [first, end), and the others."""
    count = -(-length // PAGE)
    at = torch.arange(count * PAGE, dtype=torch.int32, device=device)
    pages = torch.arange(count, dtype=torch.int32, device=device)[None]
    inside, beyond = (at >= first) & (at < end), at >= length
    one, other = (at.masked_fill(hidden | beyond, INVALID_POS).view(1, count, PAGE) for hidden in (~inside, inside))
    return Paged.of(pages, one), Paged.of(pages, other)


@cache
def kernel(name: str) -> Any:
    """Return a module of `workbench.kernels`, imported (with Triton) on first use."""
    return import_module(f"workbench.kernels.{name}")


@cache
def _triton() -> bool:
    return find_spec("triton") is not None


@cache
def _processors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
