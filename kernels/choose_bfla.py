"""BFLA's selection of key tiles (arXiv:2605.12193, section 3): pool, score, mass, expand, rescue.

    choose_bfla(q [B, Hq, R, D], keys [B, H, T, D], rows [B, R], rule, flat)
        -> [B, Hq, I, J] bool: row tile i of head h attends to key tile j, of `rule.tile` tokens each

Row r of request b is at position `rows[b, r]`, rising: a whole prompt, a chunk of it, or scattered tokens. Heads of a
GQA group keep the union of their selections. The score of two blocks is the largest product of a vector (`flat` tokens)
of one with a vector of the other (`workbench.core.tiling.tile_selection.bfla`); `rule` selects tiles by it
(`workbench.core.tiling.tile_selection.TileRule`).

Only one fp32 score per pair of blocks is written: tiles of the matrix product are reduced to the maximum of each pair
in registers. Tiles in the future of all rows are skipped.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from workbench.core.tiling import tile_selection
from workbench.core.tiling.tile_selection import TileRule, tiles_kept_by
from workbench.kernels._select import vectors as _choose_vectors
from workbench.kernels._select.keep import carry_out, fits
from workbench.kernels._select.vectors import products
from workbench.kernels._shared.attention import Config, rows_first
from workbench.kernels._shared.triton_import import jit, need_triton, tl, triton

__all__ = ["cases", "configure", "launch", "reference", "takes"]


def configure(dtype: torch.dtype) -> Config:
    """Return the launch configuration of the product: vectors of queries and of keys in a tile."""
    if dtype == torch.float32:
        return Config(32, 32, 4, 1, descriptors=True)
    return Config(128, 128, 8, 3, descriptors=True)


def reference(q: Tensor, keys: Tensor, rows: Tensor, rule: TileRule, flat: int) -> Tensor:
    """Compute the result in torch, scores in fp32."""
    length, group = keys.shape[2], q.shape[1] // keys.shape[1]
    scores = (tile_selection.bfla(*one, rule.block, flat) for one in zip(q, keys, strict=True))
    return torch.stack([tiles_kept_by(*one, length, rule, group, True) for one in zip(scores, rows, strict=True)])


@jit
def _score(
    q, keys, q_tiles, key_tiles, score, rows, count, length, row_blocks, key_blocks, scale, key_programs,
    q_batch, q_head, q_token, key_batch, key_head, key_token,
    GROUP: tl.constexpr, FLAT: tl.constexpr, GROUPS: tl.constexpr, D: tl.constexpr, STEP: tl.constexpr,
    DESCRIPTORS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    head, request = tl.program_id(1), tl.program_id(2)
    tile, tile_n = tl.program_id(0) // key_programs, tl.program_id(0) % key_programs
    end = tl.minimum((tile + 1) * BLOCK_M * FLAT, count)
    last = tl.load(rows + request.to(tl.int64) * count + end - 1)
    if tile_n * BLOCK_N * FLAT <= last:  # else the tile is masked, and no kernel reads its scores
        queries = (q, q_tiles, head, tile * BLOCK_M, count, q_batch, q_head, q_token)
        their_keys = (keys, key_tiles, head // GROUP, tile_n * BLOCK_N, length, key_batch, key_head, key_token)
        logits = products(request, queries, their_keys, FLAT, False, D, STEP, DESCRIPTORS, BLOCK_M, BLOCK_N)
        M: tl.constexpr = BLOCK_M // GROUPS
        N: tl.constexpr = BLOCK_N // GROUPS
        best = tl.max(tl.max(tl.reshape(logits, [M, GROUPS, N, GROUPS]), 3), 1) * scale
        i, j = tile * M + tl.arange(0, M), tile_n * N + tl.arange(0, N)
        one = (request * tl.num_programs(1) + head).to(tl.int64) * row_blocks + i
        inside = (i < row_blocks)[:, None] & (j < key_blocks)[None, :]
        tl.store(score + one[:, None] * key_blocks + j[None, :], best, mask=inside)


def takes(q: Tensor, keys: Tensor, rule: TileRule, flat: int) -> bool:
    """Return whether `launch` supports these arguments; if not, use `reference`.

    It supports head widths that are multiples of 16, blocks of 1, 2, 4 … 32 vectors, tiles of a block's size over a
    power of two, and up to 8,192 key blocks times heads of a group.
    """
    groups, group = rule.block // flat, q.shape[1] // keys.shape[1]
    return groups <= 32 and groups & groups - 1 == 0 and fits(q, keys, rule, group)


def launch(q: Tensor, keys: Tensor, rows: Tensor, rule: TileRule, flat: int, *, config: Config | None = None) -> Tensor:
    """Run the Triton kernels on CUDA tensors, or on CPU tensors in fp32 or fp16 under TRITON_INTERPRET=1."""
    need_triton("choose_bfla")
    config = config or configure(q.dtype)
    scores = _scores(config, rows_first(q), rows_first(keys), rows.contiguous(), rule.block, flat)
    return carry_out(scores, rows, keys.shape[2], rule, q.shape[1] // keys.shape[1], logits=True)


def _scores(config: Config, q: Tensor, keys: Tensor, rows: Tensor, block: int, flat: int) -> Tensor:
    """Compute `tile_selection.bfla` [B, Hq, Lq, Lkv] (fp32); masked blocks are unwritten."""
    batch, heads, count, width = q.shape
    length, groups, channels = keys.shape[2], block // flat, _choose_vectors.step(q)
    row_blocks, key_blocks = -(-count // block), -(-length // block)
    block_m = _choose_vectors.shape(config.rows, row_blocks * groups, groups)
    block_n = _choose_vectors.shape(config.keys, key_blocks * groups, groups)
    row_programs, key_programs = triton.cdiv(row_blocks * groups, block_m), triton.cdiv(key_blocks * groups, block_n)
    with_descriptors = _choose_vectors.described(config, flat, q, keys)
    views = ((q, block_m), (keys, block_n))
    score = torch.empty(batch, heads, row_blocks, key_blocks, device=q.device)
    tensors = q, keys, *(_choose_vectors.descriptor(x, flat, n, channels) if with_descriptors else x for x, n in views)
    sizes = score, rows, count, length, row_blocks, key_blocks, width**-0.5, key_programs
    constants = {"GROUP": heads // keys.shape[1], "FLAT": flat, "GROUPS": groups, "D": width, "STEP": channels}
    constants |= {"DESCRIPTORS": with_descriptors, "BLOCK_M": block_m, "BLOCK_N": block_n}
    _score[(row_programs * key_programs, heads, batch)](
        *tensors, *sizes, *q.stride()[:3], *keys.stride()[:3], **constants, **config.launch
    )
    return score


def cases(device: str = "cpu", dtype: torch.dtype = torch.float32) -> Iterator[tuple[Any, ...]]:
    """Yield arguments to compare `launch` with `reference`: whole, chunked and scattered rows; odd lengths."""
    for seed, (batch, heads, count, length, width, flat, rule) in enumerate(
        (
            (1, (4, 2), 300, 300, 64, 16, TileRule(64, 16, 0.6, local=1, sink=1)),
            (2, (2, 1), 90, 165, 128, 16, TileRule(32, 32, 0.8, stride=7, random=0.1, seed=3)),
            (1, (6, 2), 64, 512, 64, 32, TileRule(128, 32, 0.5, local=2, sink=1)),
            (1, (2, 2), 77, 200, 80, 8, TileRule(32, 8, 0.9, local=1, sink=2, random=0.02, seed=5)),
        )
    ):
        draw = torch.Generator().manual_seed(seed)
        q, keys = (
            torch.randn(batch, n, tokens, width, generator=draw) * 0.3
            for n, tokens in zip(heads, (count, length), strict=True)
        )
        rows = torch.arange(length - count, length).repeat(batch, 1)
        if seed == 3:  # scattered
            rows[0] = torch.randperm(length, generator=draw)[:count].sort().values
        yield q.to(device, dtype), keys.to(device, dtype), rows.to(device), rule, flat
