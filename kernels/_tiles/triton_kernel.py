"""Attention over selected tiles of contiguous keys.

Shared by `tile_attention` (tiles are selected per query tile and head) and `page_list_attention` (pages are selected
per chunk and group of heads).

A selection is one rising list of key tiles per (request, group of heads, query tile). The lists are compacted, so the
loop over keys has no branch. Leading tiles that are fully visible to all rows of the program need no mask; if strides
allow it, they are loaded through tensor descriptors. Names in the kernel are those of `_shared.attention`.
"""

import torch
from torch import Tensor

import workbench.kernels._tiles.hopper as _tiles_hopper
from workbench.core.errors import BadInput
from workbench.kernels._shared.attention import (
    INVALID_POS,
    Config,
    count_upto,
    empty_state,
    load_tile,
    log2_scale,
    logits,
    rows_first,
    step,
    together,
)
from workbench.kernels._shared.triton_import import TensorDescriptor, jit, padded_width, tl, triton

SIZES = (16, 32, 64, 128, 256)  # tokens of a key tile


def configure(width: int, dtype: torch.dtype) -> Config:
    """Return the launch configuration for head width `width`."""
    if dtype == torch.float32:
        return Config(32, 32, 4, 1, descriptors=True)
    return Config(128, 64, 8, 2, descriptors=True) if width > 128 else Config(128, 128, 8, 2, descriptors=True)


def lists(kept: Tensor) -> tuple[Tensor, Tensor]:
    """Convert [..., J] bool to ascending lists (indptr [N + 1], indices), int32, on the same device.

    There is no synchronization: `indices` has room for the longest lists, and is unwritten after indptr[N].
    """
    flat = kept.flatten(0, -2)
    indptr = torch.zeros(len(flat) + 1, dtype=torch.int32, device=kept.device)
    indptr[1:].copy_(flat.sum(1).cumsum(0))
    place = indptr[:-1, None].long() + flat.cumsum(1) - 1
    columns = torch.arange(flat.shape[1], dtype=torch.int32, device=kept.device).expand(flat.shape)
    indices = torch.empty(flat.numel() + 1, dtype=torch.int32, device=kept.device)
    indices.scatter_(0, place.masked_fill(~flat, flat.numel()).flatten(), columns.flatten())
    return indptr, indices


@jit
def _span(
    state, begin, end, rows, tile_list, kv, scale, MASKED: tl.constexpr, LISTED: tl.constexpr, DESCRIPTORS:
    tl.constexpr, SIZE: tl.constexpr, BLOCK_N: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
):  # fmt: skip
    """Process steps `begin` to `end`, each BLOCK_N keys of a listed tile."""
    acc, m_i, l_i = state
    x, at_row, highest = rows
    list_at, tile_base = tile_list
    keys, values, key_tiles, value_tiles, key_row, value_row, key_token, value_token = kv
    SUB: tl.constexpr = SIZE // BLOCK_N
    col = tl.arange(0, DP)
    for i in tl.range(begin, end):
        if LISTED:  # noqa: SIM108, decided at compile time
            start = (tl.load(list_at + i // SUB) - tile_base) * SIZE + i % SUB * BLOCK_N
        else:
            start = i * BLOCK_N
        at = start + tl.arange(0, BLOCK_N)
        if DESCRIPTORS and not MASKED:
            k = key_tiles.load([key_row + start, 0])
            v = value_tiles.load([value_row + start, 0])
        else:
            k_at = keys + at.to(tl.int64)[:, None] * key_token + col[None, :]
            v_at = values + at.to(tl.int64)[:, None] * value_token + col[None, :]
            k = load_tile(k_at, (at <= highest)[:, None], MASKED, D, DP)
            v = load_tile(v_at, (at <= highest)[:, None], MASKED, D, DP)
        s = logits(x, k, scale)
        if MASKED:
            s = tl.where(at[None, :] <= at_row[:, None], s, float("-inf"))
        acc, m_i, l_i = step(acc, m_i, l_i, s, v, MASKED)
    return acc, m_i, l_i


@jit
def _attend(
    q, keys, values, key_tiles, value_tiles, out, rows, indptr, indices, scale, count, capacity,
    q_batch, q_head, q_token, key_batch, key_head, key_token, value_batch, value_head, value_token,
    out_batch, out_head, out_token, row_tiles, together, lists, queries,
    GROUP: tl.constexpr, HEADS: tl.constexpr, LISTED: tl.constexpr, SHARED: tl.constexpr, STRIDED: tl.constexpr,
    DESCRIPTORS: tl.constexpr, SIZE: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    section, place = tl.program_id(0) // (row_tiles * together), tl.program_id(0) % (row_tiles * together)
    head = (section * together + place % together).to(tl.int64)
    tile_m = row_tiles - 1 - place // together  # the last rows attend to the most keys: start them first
    request = tl.program_id(1)
    kv_head = head // GROUP
    row = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    at_row = tl.load(rows + request.to(tl.int64) * count + row, mask=row < count, other=-1).to(tl.int32)
    valid = at_row >= 0
    highest = tl.max(at_row, 0)
    lowest = tl.min(tl.where(valid, at_row, INVALID_POS), 0)
    lowest = tl.minimum(lowest, highest)
    tile_base = 0
    list_at = indices
    if LISTED:
        n = (request * (HEADS // SHARED) + head // SHARED) * lists + (tile_m * BLOCK_M // queries) % lists
        first, last = tl.load(indptr + n), tl.load(indptr + n + 1)
        if STRIDED:
            tile_base = ((request * (HEADS // GROUP) + kv_head) * capacity).to(tl.int32)
        # tile j is fully visible if (j + 1) * SIZE - 1 <= lowest, and partly if j * SIZE <= highest
        clear = count_upto(indices, first, last, (lowest + 1) // SIZE - 1 + tile_base, 256) * (SIZE // BLOCK_N)
        tiles = count_upto(indices, first, last, tile_base + tl.where(highest < 0, -1, highest // SIZE), 256)
        tiles = tiles * (SIZE // BLOCK_N)
        list_at = indices + first
    else:
        clear = (lowest + 1) // BLOCK_N
        tiles = (highest + BLOCK_N) // BLOCK_N
    col = tl.arange(0, DP)
    inside = (row < count)[:, None] & (col < D)[None, :]
    request = request.to(tl.int64)
    row64 = row.to(tl.int64)[:, None]
    x = tl.load(q + request * q_batch + head * q_head + row64 * q_token + col[None, :], mask=inside, other=0.0)
    key_at, value_at = request * key_batch + kv_head * key_head, request * value_batch + kv_head * value_head
    key_row, value_row = (key_at // key_token).to(tl.int32), (value_at // value_token).to(tl.int32)
    rows, tile_list = (x, at_row, highest), (list_at, tile_base)
    kv = (keys + key_at, values + value_at, key_tiles, value_tiles, key_row, value_row, key_token, value_token)
    state = _span(
        empty_state(BLOCK_M, DP), 0, clear, rows, tile_list, kv, scale, False, LISTED, DESCRIPTORS, SIZE, BLOCK_N, D, DP
    )
    acc, _, l_i = _span(
        state, clear, tiles, rows, tile_list, kv, scale, True, LISTED, DESCRIPTORS, SIZE, BLOCK_N, D, DP
    )
    some = valid & (l_i > 0)
    result = tl.where(some[:, None], acc / tl.where(some, l_i, 1.0)[:, None], 0.0)
    target = out + request * out_batch + head * out_head + row64 * out_token + col[None, :]
    tl.store(target, result.to(out.dtype.element_ty), mask=inside)


def launch(
    config: Config | None,
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    rows: Tensor,
    indptr: Tensor | None,
    indices: Tensor | None,
    size: int,
    queries: int,
    scale: float | None,
    strided: bool = False,
) -> Tensor:
    """Compute `_tiles.reference.reference` on the GPU; without a launch shape, `_tiles.hopper` does it where it can."""
    check(q, keys, rows, indptr, size, queries)
    if config is None and _tiles_hopper.fits(q, keys, values, None if indptr is None else size, queries):
        return _tiles_hopper.launch(q, keys, values, rows, indptr, indices, size, queries, scale, strided)
    q, keys, values = rows_first(q), rows_first(keys), rows_first(values)
    config = config or configure(q.shape[3], q.dtype)
    batch, q_heads, count, width = q.shape
    heads, length = keys.shape[1:3]
    group, wide = q_heads // heads, padded_width(width)
    lists_ = -(-count // queries)
    block_m = config.rows if lists_ == 1 else min(config.rows, queries & -queries)
    block_n = config.keys if indptr is None else min(config.keys, size)
    tiles = triton.cdiv(count, block_m)
    described = config.descriptors and all(_regular(x) for x in (keys, values))
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    section = together(keys, group)
    tensors = q, keys, values, *(_descriptor(x, block_n, wide) if described else x for x in (keys, values)), out
    sizes = rows.contiguous(), rows if indptr is None else indptr, rows if indices is None else indices
    rest = log2_scale(scale, width), count, length // size
    strides = *q.stride()[:3], *keys.stride()[:3], *values.stride()[:3], *out.stride()[:3]
    constants = {"GROUP": group, "HEADS": q_heads, "LISTED": indptr is not None}
    constants |= {"SHARED": 1 if indptr is None else q_heads * batch * lists_ // (len(indptr) - 1)}
    constants |= {"STRIDED": strided, "DESCRIPTORS": described, "SIZE": size if indptr is not None else block_n}
    constants |= {"D": width, "DP": wide, "BLOCK_M": block_m, "BLOCK_N": block_n}
    _attend[(tiles * q_heads, batch)](
        *tensors, *sizes, *rest, *strides, tiles, section, lists_, queries, **constants, **config.launch
    )
    return out


def check(q: Tensor, keys: Tensor, rows: Tensor, indptr: Tensor | None, size: int, queries: int) -> None:
    """Raise BadInput for shapes that the kernel does not support."""
    if q.shape[1] % keys.shape[1]:
        raise BadInput(f"{q.shape[1]} query heads cannot share {keys.shape[1]} KV heads")
    if rows.shape != (q.shape[0], q.shape[2]):
        raise BadInput(f"rows {tuple(rows.shape)} of queries {tuple(q.shape)}: one position per row is needed")
    if indptr is None:
        return
    if size not in SIZES:
        raise BadInput(f"key tiles of {size} tokens: the kernel takes {', '.join(map(str, SIZES))}")
    tiles = -(-q.shape[2] // queries)
    if tiles > 1 and queries & -queries < 16:
        raise BadInput(f"query tiles of {queries} rows: the kernel takes multiples of 16")
    groups, rest = divmod(len(indptr) - 1, len(q) * tiles)
    if rest or not groups or q.shape[1] % groups:
        raise BadInput(f"{len(indptr) - 1} lists for {len(q)} requests of {q.shape[1]} heads and {tiles} query tiles")


def _regular(x: Tensor) -> bool:
    """Return whether [B, H, T, D] is a matrix of evenly spaced rows, as a tensor descriptor requires."""
    batch, head, token, _ = x.stride()
    aligned = token * x.element_size() % 16 == 0 and x.data_ptr() % 16 == 0
    return aligned and head % token == 0 and batch % token == 0


def _descriptor(x: Tensor, rows: int, width: int) -> "TensorDescriptor":
    batch, head, token, _ = x.stride()
    count = (batch * (x.shape[0] - 1) + head * (x.shape[1] - 1)) // token + x.shape[2]
    return TensorDescriptor(x, [count, x.shape[3]], [token, 1], [rows, width])
