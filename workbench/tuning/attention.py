"""Attention of a training step: FlexAttention under a BlockMask on a GPU, torch's own under a dense mask elsewhere.

Registered with transformers as attention "workbench-train"; the masks of a packed sequence, one for every sliding
window of the model, come as the forward keyword argument `masks`. A BlockMask holds 128 × 128 tiles, not tokens, so
nothing of the size of the sequence squared is ever kept on a GPU.
"""

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface

from workbench.attention import refuse
from workbench.errors import BadInput
from workbench.masks import visible
from workbench.tuning.packing import Packed

NAME = "workbench-train"
LENGTHS = 64  # most sequence lengths that kernels are compiled for
TILE = 128  # tokens of a tile of a BlockMask; a packed sequence is a multiple of it long

Masks = Mapping[int | None, BlockMask | torch.Tensor]


def masks_of(packed: Packed, windows: Iterable[int | None], flex: bool | None = None) -> Masks:
    """A mask for every sliding window of the model: BlockMask where `flex` (default: on a GPU), else [T, T] bool."""
    if flex is None:
        flex = packed.tokens.is_cuda
    return {window: (_block_mask if flex else _dense_mask)(packed, window) for window in set(windows)}


def _dense_mask(packed: Packed, window: int | None) -> torch.Tensor:
    rows = torch.arange(len(packed.tokens), device=packed.tokens.device)
    return visible(packed.sees(window), rows, rows)


def _block_mask(packed: Packed, window: int | None) -> BlockMask:
    sees, length = packed.sees(window), len(packed.tokens)

    def mask(batch: torch.Tensor, head: torch.Tensor, row: torch.Tensor, col: torch.Tensor) -> torch.Tensor:
        return sees(row, col)

    make = _compiled(create_block_mask) if packed.tokens.is_cuda else create_block_mask
    return make(mask, None, None, length, length, device=packed.tokens.device, BLOCK_SIZE=TILE)


@cache
def _compiled(function: Any) -> Any:
    """Compiled when it is first used on a GPU, once for every length; beyond LENGTHS it would silently run unfused."""
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, LENGTHS)
    return torch.compile(function, dynamic=False)


def attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    *,
    masks: Masks | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    is_causal: bool | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """[1, H, T, D] each -> [1, T, Hq, D]; transformers' attention interface."""
    if masks is None:
        raise BadInput(f"attention {NAME!r} is for training: call model.set_attn_implementation('sdpa') for other uses")
    refuse(module, attention_mask, dropout, others)
    mask = masks[sliding_window]
    query, key = query.to(value.dtype), key.to(value.dtype)  # a norm of queries and keys leaves autocast's bf16
    if isinstance(mask, BlockMask):
        kernel = _compiled(flex_attention) if query.is_cuda else flex_attention
        out = kernel(query, key, value, block_mask=mask, scale=scaling, enable_gqa=query.shape[1] != key.shape[1])
        return out.transpose(1, 2).contiguous(), None
    group = query.shape[1] // key.shape[1]
    k, v = (x[0][:, None].expand(-1, group, -1, -1) for x in (key, value))  # heads of a GQA group share keys, no copies
    out = scaled_dot_product_attention(query[0].unflatten(0, (-1, group)), k, v, mask, scale=scaling)
    return out.flatten(0, 1).transpose(0, 1)[None].contiguous(), None


def _no_mask(*_: Any, **__: Any) -> None:
    """The masks of a packed sequence say who sees whom; transformers need not build one."""


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, _no_mask)
