"""Attention in training: FlexAttention with a BlockMask on a GPU, elsewhere torch's SDPA, one call per mask.

Registered with transformers as attention "workbench-train". The masks of a packed sequence, one per sliding window of
the model, are passed as the forward keyword argument `masks`. Instead of one mask over the sequence, a BlockMask holds
tiles of 128 × 128, and a MaskBlock covers one block, or the questions over one context.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface

from workbench.core.errors import BadInput
from workbench.core.masks import visible
from workbench.models.transformers_attention import refuse
from workbench.training.tuning.text.packing import PackedExamples

NAME = "workbench-train"
LENGTHS = 64  # maximum number of sequence lengths that kernels are compiled for
TILE = 128  # tokens per tile of a BlockMask; lengths of packed sequences are multiples of it
STRIP = 16  # rows of tiles processed at a time to build a BlockMask


@dataclass(frozen=True)
class MaskBlock:
    """A range of rows with the range of columns that contains all keys they attend to."""

    rows: slice
    cols: slice
    mask: Tensor  #: [rows, cols] bool
    causal: bool = False  #: the mask is causal over a square


Masks = Mapping[int | None, BlockMask | tuple[MaskBlock, ...]]


def masks_of(packed: PackedExamples, windows: Iterable[int | None], how: str | None = None) -> Masks:
    """Return the mask of a packed sequence for each sliding window of the model.

    how   "tiles": BlockMask, the default on a GPU; "parts": MaskBlocks, the default elsewhere, needs no compilation;
          "dense": one [T, T] mask, as a reference
    """
    if how is None:
        how = "tiles" if packed.tokens.is_cuda else "parts"
    return {window: MAKERS[how](packed, window) for window in set(windows)}


def _dense(packed: PackedExamples, window: int | None) -> tuple[MaskBlock, ...]:
    return (_part(packed, window, 0, 0, len(packed.tokens)),)


def _parts(packed: PackedExamples, window: int | None) -> tuple[MaskBlock, ...]:
    """Return one mask per context block without its links, and one for the questions over a context.

    A question attends to the context and itself; links attend to the context before them and themselves.
    """
    owner = torch.where(packed.in_question, -1 - packed.examples, packed.blocks)
    _, lengths = torch.unique_consecutive(owner, return_counts=True)
    masks, example, context, begin = [], None, 0, 0
    for length in lengths.tolist():
        if (current := int(packed.examples[begin])) != example:
            example, context = current, begin
        wide = bool(packed.wide[begin])
        causal = not wide and (window is None or length <= window)
        masks.append(_part(packed, window, begin, context if wide else begin, begin + length, causal))
        begin += length
    return tuple(masks)


def _part(
    packed: PackedExamples, window: int | None, begin: int, first: int, end: int, causal: bool = False
) -> MaskBlock:
    """Return the mask of rows from `begin` and columns from `first`, both up to `end`."""
    index = torch.arange(first, end, device=packed.tokens.device)
    mask = visible(packed.sees(window), index[begin - first :], index)
    return MaskBlock(slice(begin, end), slice(first, end), mask, causal)


def _block_mask(packed: PackedExamples, window: int | None) -> BlockMask:
    sees, length = packed.sees(window), len(packed.tokens)

    def mask(batch: Tensor, head: Tensor, row: Tensor, col: Tensor) -> Tensor:
        return sees(row, col)

    partly, fully = _tile_table(packed, window)
    lists = (*_listed(partly & ~fully), *_listed(fully))
    return BlockMask.from_kv_blocks(*lists, BLOCK_SIZE=TILE, mask_mod=mask, seq_lengths=(length, length))


def _tile_table(packed: PackedExamples, window: int | None) -> tuple[Tensor, Tensor]:
    """Return two [T / TILE, T / TILE] bool: tiles with a visible pair, and tiles with only visible pairs.

    Torch's `create_block_mask` materializes all pairs [T, T], or has to be compiled for every T.
    """
    index = torch.arange(len(packed.tokens), device=packed.tokens.device)
    tables = []
    for rows in index.split(STRIP * TILE):
        tiles = visible(packed.sees(window), rows, index).unflatten(1, (-1, TILE)).unflatten(0, (-1, TILE))
        tables.append((tiles.any(3).any(1), tiles.all(3).all(1)))
    some, whole = (torch.cat(table) for table in zip(*tables, strict=True))
    return some, whole


def _listed(table: Tensor) -> tuple[Tensor, Tensor]:
    """Return the number of set tiles per row of `table` [R, C], [1, 1, R], and columns [1, 1, R, C], set ones first."""
    columns = table.int().argsort(dim=1, descending=True, stable=True)
    return table.sum(1, dtype=torch.int32)[None, None], columns.int()[None, None]


MAKERS: Mapping[str, Callable[[PackedExamples, int | None], BlockMask | tuple[MaskBlock, ...]]]
MAKERS = {"tiles": _block_mask, "parts": _parts, "dense": _dense}


@cache
def _compiled(function: Any) -> Any:
    """Compile at first use on a GPU, once per length; beyond the limit, torch would silently run it unfused."""
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, LENGTHS)
    return torch.compile(function, dynamic=False)


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    *,
    masks: Masks | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    is_causal: bool | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attend with queries, keys and values [1, H, T, D] -> [1, T, Hq, D], as transformers' attention interface."""
    if masks is None:
        raise BadInput(f"attention {NAME!r} is for training: call model.set_attn_implementation('sdpa') for other uses")
    refuse(module, attention_mask, dropout, others)
    mask = masks[sliding_window]
    query, key = query.to(value.dtype), key.to(value.dtype)  # norms of queries and keys return fp32 under bf16 autocast
    if isinstance(mask, BlockMask):
        kernel = _compiled(flex_attention) if query.is_cuda else flex_attention
        out = kernel(query, key, value, block_mask=mask, scale=scaling, enable_gqa=query.shape[1] != key.shape[1])
        return out.transpose(1, 2).contiguous(), None
    group = query.shape[1] // key.shape[1]
    q = query[0].unflatten(0, (-1, group))
    k, v = (x[0][:, None].expand(-1, group, -1, -1) for x in (key, value))  # GQA groups share keys without copies
    outputs = [
        scaled_dot_product_attention(
            q[:, :, x.rows],
            k[:, :, x.cols],
            v[:, :, x.cols],
            None if x.causal else x.mask,
            is_causal=x.causal,
            scale=scaling,
        )
        for x in mask
    ]
    return torch.cat(outputs, dim=2).flatten(0, 1).transpose(0, 1)[None].contiguous(), None


def forward(model: torch.nn.Module, batch: PackedExamples, masks: Masks) -> Tensor:
    """Compute logits [A, V] of the rows that predict answer tokens only."""
    ids, positions = batch.tokens[None], batch.positions[None]
    options: dict[str, Any] = {"use_cache": False, "logits_to_keep": batch.rows, "masks": masks}
    return model(input_ids=ids, position_ids=positions, **options).logits[0]


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, lambda *_, **__: None)  # packed sequences pass their own masks
