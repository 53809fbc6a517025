"""Contiguous copies of listed tokens of keys and values.

    launch(keys [H, T, D], values [H, T, D'], listed [K] or [H, K]) -> ([H, K, D], [H, K, D'])

For index T, zeros are written, as kernels also read the masked tokens of a page. Entries of index T + 1 and above are
left unwritten.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from workbench.kernels._shared.attention import rows_first
from workbench.kernels._shared.triton_import import jit, need_triton, padded_width, tl, triton

TOKENS = 64  # per program


def reference(keys: Tensor, values: Tensor, listed: Tensor) -> tuple[Tensor, Tensor]:
    """Compute `launch` in torch, by indexing; 0 for index T."""
    at, head = listed.long().expand(len(keys), -1), torch.arange(len(keys), device=keys.device)[:, None]
    keys, values = (torch.cat((x, torch.zeros_like(x[:, :1])), 1) for x in (keys, values))
    return keys[head, at], values[head, at]


@jit
def _copy(
    source,
    listed,
    out,
    count,
    length,
    list_head,
    head_step,
    token_step,
    D: tl.constexpr,
    DP: tl.constexpr,
    TOKENS: tl.constexpr,
):
    head, at, col = tl.program_id(1), tl.program_id(0) * TOKENS + tl.arange(0, TOKENS), tl.arange(0, DP)
    token = tl.load(listed + head * list_head + at, mask=at < count, other=length).to(tl.int64)
    inside = (token < length)[:, None] & (col < D)[None, :]
    x_at = source + head.to(tl.int64) * head_step + token[:, None] * token_step + col[None, :]
    x = tl.load(x_at, mask=inside, other=0.0)
    there = ((at < count) & (token <= length))[:, None] & (col < D)[None, :]
    tl.store(out + (head.to(tl.int64) * count + at)[:, None] * D + col[None, :], x, mask=there)


def launch(keys: Tensor, values: Tensor, listed: Tensor) -> tuple[Tensor, Tensor]:
    """Run the Triton kernel on CUDA tensors, or on CPU tensors under TRITON_INTERPRET=1."""
    need_triton("copies")
    found, step = [], 0 if listed.ndim == 1 else listed.stride(0)
    for source in map(rows_first, (keys, values)):
        heads, length, width = source.shape
        out = source.new_empty(heads, listed.shape[-1], width)
        sizes = listed.shape[-1], length, step, *source.stride()[:2]
        _copy[(triton.cdiv(listed.shape[-1], TOKENS), heads)](
            source, listed, out, *sizes, D=width, DP=padded_width(width), TOKENS=TOKENS
        )
        found.append(out)
    return found[0], found[1]


def cases(device: str = "cpu", dtype: torch.dtype = torch.float32) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield arguments to compare `launch` with `reference`: one list for all heads, one list per head."""
    draw = torch.Generator().manual_seed(0)
    keys, values = (torch.randn(3, 90, width, generator=draw).to(device, dtype) for width in (48, 16))
    one = torch.randperm(90, generator=draw)[:70].sort().values
    each = torch.stack([torch.randperm(90, generator=draw)[:33].sort().values for _ in range(3)]).int()
    each[:, 30:] = 90
    yield keys, values, one.to(device)
    yield keys, values, each.to(device)
