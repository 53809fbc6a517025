"""Backends for attention within many blocks at once, for packed encoding.

encode_blocks   the workbench's Triton kernel: blocks of any lengths
tile_attention  the workbench's dense kernel: blocks of one length, as a batch
cudnn           torch's cuDNN attention: blocks of one length, as a batch
flash           torch's FlashAttention 2: blocks of any lengths, 16-bit dtypes

Each takes (q [Hq, N, D], keys [H, N, D], values [H, N, D], cu_seqlens [B + 1], longest block, scale) and returns
[Hq, N, D]. The choice follows measurements (`attention_backends.choice`).
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from workbench.engine.attention_backends import choice as measured_backends
from workbench.engine.attention_backends.choice import kernel

Way = Callable[[Tensor, Tensor, Tensor, Tensor, int, float | None], Tensor]
OWN = "encode_blocks"


def triton(q: Tensor, keys: Tensor, values: Tensor, cu_seqlens: Tensor, longest: int, scale: float | None) -> Tensor:
    """Attend with `encode_blocks`."""
    return kernel(OWN).launch(q, keys, values, cu_seqlens, longest, scale)


def batched(q: Tensor, keys: Tensor, values: Tensor, cu_seqlens: Tensor, longest: int, scale: float | None) -> Tensor:
    """Attend with `tile_attention`: blocks of one length, as views of a batch."""
    count = len(cu_seqlens) - 1
    q, keys, values = (x.unflatten(1, (count, longest)).transpose(0, 1) for x in (q, keys, values))
    rows = _rows(count, longest, q.device)
    out: Tensor = kernel("tile_attention").launch(q, keys, values, rows, scale=scale)  # [B, Hq, L, D]
    return out.transpose(0, 1).flatten(1, 2)


def cudnn(q: Tensor, keys: Tensor, values: Tensor, cu_seqlens: Tensor, longest: int, scale: float | None) -> Tensor:
    """Attend with cuDNN: blocks of one length, as views of a batch."""
    count = len(cu_seqlens) - 1
    q, keys, values = (x.unflatten(1, (count, longest)).transpose(0, 1) for x in (q, keys, values))
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        out = scaled_dot_product_attention(q, keys, values, is_causal=True, scale=scale, enable_gqa=True)
    return out.transpose(0, 1).flatten(1, 2)


@cache
def _rows(count: int, longest: int, device: torch.device) -> Tensor:
    return torch.arange(longest, device=device).expand(count, -1).contiguous()


def flash(q: Tensor, keys: Tensor, values: Tensor, cu_seqlens: Tensor, longest: int, scale: float | None) -> Tensor:
    """Attend with torch's variable-length FlashAttention 2."""
    q, keys, values = (x.transpose(0, 1) for x in (q, keys, values))  # [N, H, D]
    forward = torch.ops.aten._flash_attention_forward
    out: Tensor = forward(q, keys, values, cu_seqlens, cu_seqlens, longest, longest, 0.0, True, False, scale=scale)[0]
    return out.transpose(0, 1)


WAYS: Mapping[str, Way] = {OWN: triton, "tile_attention": batched, "cudnn": cudnn, "flash": flash}
EQUAL = ("tile_attention", "cudnn")  # backends for blocks of equal length
MANY = 16  # minimum number of blocks for `EQUAL`: cuDNN builds a plan for each new length


def fastest_backend(q: Tensor, keys: Tensor, lengths: Sequence[int]) -> str:
    """Return the name of the fastest backend that supports blocks of these `lengths` on this device."""
    heads, width, longest = (len(q), len(keys)), q.shape[2], max(lengths)
    if q.dtype == torch.float32 or not q.is_cuda:
        return OWN
    equal = len({*lengths}) == 1 and len(lengths) >= MANY
    way = measured_backends.choice(q.device, "blocks" if equal else "blocks of lengths", heads, width, longest, OWN)
    return way if way in WAYS and (equal or way not in EQUAL) else OWN
