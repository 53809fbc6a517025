"""Baselines of the kernels: the alternatives available to a user.

Each function sets up its baseline and returns a call without arguments; setup (plans, masks, compilation) is not timed.
Tensors are [B, H, T, D].
"""

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from workbench.core.errors import BadInput

Call = Callable[[], Any]
NAMES = ("flash", "cudnn", "flex", "flashinfer")
WORKSPACE = 512 << 20  # bytes


def select_names(against: str) -> list[str]:
    """Return the names in a comma-separated list; "all" selects all. Raises BadInput for an unknown name."""
    names = [name.strip() for name in against.split(",") if name.strip()]
    if names == ["all"]:
        return list(NAMES)
    if odd := [name for name in names if name not in NAMES]:
        raise BadInput(f"there is no baseline {odd[0]!r}: baselines are {', '.join(NAMES)}, or 'all'")
    return names


def torchs(name: str, q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Call:
    """Set up PyTorch's scaled_dot_product_attention: "flash" (FlashAttention 2) or "cudnn"."""
    backend = SDPBackend.FLASH_ATTENTION if name == "flash" else SDPBackend.CUDNN_ATTENTION

    def call() -> Tensor:
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)

    return call


def masked_attention(q: Tensor, k: Tensor, v: Tensor, rows: Tensor) -> Call:
    """Set up PyTorch's memory-efficient attention with a mask `position of the key <= rows[i]`.

    It does not support GQA, so keys and values are repeated beforehand.
    """
    group = q.shape[1] // k.shape[1]
    keys, values = (x.repeat_interleave(group, 1) for x in (k, v))
    visible = torch.arange(k.shape[2], device=q.device) <= rows[:, None]
    bias = torch.zeros(visible.shape, dtype=q.dtype, device=q.device).masked_fill_(~visible, float("-inf"))

    def call() -> Tensor:
        with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
            return scaled_dot_product_attention(q, keys, values, bias)

    return call


@cache
def _flex() -> Any:
    return torch.compile(import_module("torch.nn.attention.flex_attention").flex_attention, dynamic=False)


def flex_rows(q: Tensor, k: Tensor, v: Tensor, rows: Tensor) -> Call:
    """Set up FlexAttention with a mask `position of the key <= rows[i]`."""
    flex = import_module("torch.nn.attention.flex_attention")

    def sees(_b: Tensor, _h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return j <= rows[i]

    mask = torch.compile(flex.create_block_mask)(sees, None, None, q.shape[2], k.shape[2], device="cuda")
    return lambda: _flex()(q, k, v, block_mask=mask, enable_gqa=True)


def flex_tiles(q: Tensor, k: Tensor, v: Tensor, kept: Tensor) -> Call:
    """Set up FlexAttention over kept tiles [1, Hq, I, J] of 128 × 128, causal within them."""
    flex = import_module("torch.nn.attention.flex_attention")
    diagonal = torch.eye(kept.shape[-1], dtype=torch.bool, device=kept.device)[-kept.shape[-2] :]

    def ordered(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.sum(-1).int(), x.int().argsort(dim=-1, descending=True, stable=True).int()

    blocks = *ordered(kept & diagonal), *ordered(kept & ~diagonal)
    mask = flex.BlockMask.from_kv_blocks(*blocks, BLOCK_SIZE=128, mask_mod=lambda _b, _h, i, j: j <= i)
    return lambda: _flex()(q, k, v, block_mask=mask, enable_gqa=True)


@cache
def _workspace() -> Tensor:
    return torch.empty(WORKSPACE, dtype=torch.uint8, device="cuda")


def flashinfer_dense(q: Tensor, k: Tensor, v: Tensor) -> Call:
    """Set up FlashInfer's FlashAttention 3, dense and causal, for one request."""
    library = import_module("flashinfer")
    q_, k_, v_ = (x[0].transpose(0, 1).contiguous() for x in (q, k, v))  # [T, H, D]
    wrapper = library.BatchPrefillWithRaggedKVCacheWrapper(_workspace(), "NHD", backend="fa3")
    ends = [torch.tensor([0, len(x)], dtype=torch.int32, device="cuda") for x in (q_, k_)]
    wrapper.plan(*ends, q_.shape[1], k_.shape[1], q_.shape[2], causal=True, q_data_type=q.dtype)
    return lambda: wrapper.run(q_, k_, v_)


def flashinfer_pages(q: Tensor, k: Tensor, v: Tensor, indptr: Tensor, indices: Tensor, size: int) -> Call:
    """Set up FlashInfer's FlashAttention 3 over page lists, one per (request, KV head), as CompactAttention does.

    k, v [B, H, L, D] are read in place as [B · H · L / size, size, 1, D]; q [B, Hq, R, D].
    """
    library = import_module("flashinfer")
    (batch, q_heads, count, width), heads = q.shape, k.shape[1]
    group, lists = q_heads // heads, batch * heads
    rows = q.unflatten(1, (heads, group)).permute(0, 1, 3, 2, 4).reshape(lists * count, group, width).contiguous()
    starts = torch.arange(0, lists * count + 1, count, dtype=torch.int32, device="cuda")
    full = torch.full((lists,), size, dtype=torch.int32, device="cuda")
    plan = starts, indptr, indices[: int(indptr[-1])], full, group, 1, width, size
    wrapper = library.BatchPrefillWithPagedKVCacheWrapper(_workspace(), "NHD", backend="fa3")
    wrapper.plan(*plan, causal=True, q_data_type=q.dtype)
    cache_ = tuple(x.reshape(-1, size, 1, width) for x in (k, v))
    return lambda: wrapper.run(rows, cache_)
