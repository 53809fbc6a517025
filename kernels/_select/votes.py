"""QUOKA's votes: the queries of each head that are least similar to its mean query, averaged per KV head.

    launch(q [Hq, R, D], kv_heads, count) -> [H, count, D] fp32

A vote is the mean of the n-th least similar queries, as unit vectors, of all query heads of a KV head. Similarity is
the cosine to the mean of the head's queries; among equals the earlier is first. Four launches without a sort: the rank
of a row is the number of rows below it.
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import normalize

from workbench.kernels._shared.attention import rows_first
from workbench.kernels._shared.triton_import import jit, need_triton, padded_width, tl, triton

TILE = 128  # rows per program
SOME = 64  # rows that one program ranks
VOTES = 16  # votes per program
LEAST = tl.constexpr(1e-12)  # minimum norm of a row, as in torch's `normalize`


def reference(q: Tensor, kv_heads: int, count: int) -> Tensor:
    """Compute `launch` in torch, with a stable sort."""
    unit = normalize(q.float(), dim=-1)
    alike = (unit @ normalize(q.float().mean(1), dim=-1)[..., None])[..., 0]  # [Hq, R]
    unlike = alike.sort(dim=-1, stable=True).indices[:, :count]
    ours = unit.gather(1, unlike[..., None].expand(-1, -1, unit.shape[-1]))
    return ours.unflatten(0, (kv_heads, -1)).mean(1)


@jit
def _rows(q, head, row, count, q_head, q_token, D: tl.constexpr, DP: tl.constexpr):
    """Load rows [N, DP] of a head, in fp32."""
    col = tl.arange(0, DP)
    at = q + head.to(tl.int64) * q_head + row.to(tl.int64)[:, None] * q_token + col[None, :]
    return tl.load(at, mask=(row < count)[:, None] & (col < D)[None, :], other=0.0).to(tl.float32)


@jit
def _sums(q, sums, count, q_head, q_token, D: tl.constexpr, DP: tl.constexpr, TILE: tl.constexpr):
    """Sum the rows of each tile -> [Hq, tiles, DP]."""
    tile, head = tl.program_id(0), tl.program_id(1)
    x = _rows(q, head, tile * TILE + tl.arange(0, TILE), count, q_head, q_token, D, DP)
    tl.store(sums + (head * tl.num_programs(0) + tile) * DP + tl.arange(0, DP), tl.sum(x, 0))


@jit
def _alike(
    q,
    sums,
    alike,
    count,
    q_head,
    q_token,
    D: tl.constexpr,
    DP: tl.constexpr,
    TILE: tl.constexpr,
    TILES: tl.constexpr,
):
    """Compute [Hq, R]: cosine of each row to the mean, up to a positive factor per head."""
    tile, head, tiles = tl.program_id(0), tl.program_id(1), tl.num_programs(0)
    row, part, col = tile * TILE + tl.arange(0, TILE), tl.arange(0, TILES), tl.arange(0, DP)
    at = sums + (head * tiles + part)[:, None] * DP + col[None, :]
    mean = tl.sum(tl.load(at, mask=(part < tiles)[:, None] & (col >= 0)[None, :], other=0.0), 0)
    x = _rows(q, head, row, count, q_head, q_token, D, DP)
    length = tl.maximum(tl.sqrt(tl.sum(x * x, 1)), LEAST)
    tl.store(alike + head * count + row, tl.sum(x * mean[None, :], 1) / length, mask=row < count)


@jit
def _order(alike, order, count, votes, TILE: tl.constexpr):
    """Write [Hq, votes] int32: the least similar rows, in ascending order of similarity."""
    head = tl.program_id(1)
    row = tl.program_id(0) * TILE + tl.arange(0, TILE)
    alike += head * count
    mine = tl.load(alike + row, mask=row < count, other=float("inf"))
    rank = tl.zeros([TILE, TILE], tl.int32)
    for first in range(0, count, TILE):
        other = first + tl.arange(0, TILE)
        theirs = tl.load(alike + other, mask=other < count, other=float("inf"))
        below = theirs[None, :] < mine[:, None]
        below |= (theirs[None, :] == mine[:, None]) & (other[None, :] < row[:, None])
        rank += below.to(tl.int32)
    rank = tl.sum(rank, 1)
    tl.store(order + head * votes + rank, row, mask=(row < count) & (rank < votes))


@jit
def _vote(
    q,
    order,
    out,
    count,
    votes,
    q_head,
    q_token,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    DP: tl.constexpr,
    VOTES: tl.constexpr,
):
    """Average unit vectors over the heads of a KV head."""
    kv_head, vote, col = tl.program_id(1), tl.program_id(0) * VOTES + tl.arange(0, VOTES), tl.arange(0, DP)
    total = tl.zeros([VOTES, DP], tl.float32)
    for one in tl.static_range(GROUP):
        head = kv_head * GROUP + one
        row = tl.load(order + head * votes + vote, mask=vote < votes, other=0)
        x = _rows(q, head, row, count, q_head, q_token, D, DP)
        total += x / tl.maximum(tl.sqrt(tl.sum(x * x, 1)), LEAST)[:, None]
    target = out + (kv_head * votes + vote).to(tl.int64)[:, None] * D + col[None, :]
    tl.store(target, total / GROUP, mask=(vote < votes)[:, None] & (col < D)[None, :])


def launch(q: Tensor, kv_heads: int, count: int) -> Tensor:
    """Run the Triton kernels on CUDA tensors, or on CPU tensors under TRITON_INTERPRET=1."""
    need_triton("votes")
    q = rows_first(q)
    heads, rows, width = q.shape
    tiles, wide = triton.cdiv(rows, TILE), padded_width(width)
    numbers = torch.empty(heads * (tiles * wide + rows), device=q.device)
    sums, alike = numbers[: heads * tiles * wide], numbers[heads * tiles * wide :]
    order = torch.empty(heads, count, dtype=torch.int32, device=q.device)
    votes = torch.empty(kv_heads, count, width, device=q.device)
    steps, shape = q.stride()[:2], {"D": width, "DP": wide}
    _sums[(tiles, heads)](q, sums, rows, *steps, **shape, TILE=TILE)
    parts = {"TILE": TILE, "TILES": triton.next_power_of_2(tiles)}
    _alike[(tiles, heads)](q, sums, alike, rows, *steps, **shape, **parts)
    _order[(triton.cdiv(rows, SOME), heads)](alike, order, rows, count, TILE=SOME, num_warps=8)
    group = {"GROUP": heads // kv_heads, "VOTES": VOTES}
    _vote[(triton.cdiv(count, VOTES), kv_heads)](q, order, votes, rows, count, *steps, **group, **shape)
    return votes


def cases(device: str = "cpu", dtype: torch.dtype = torch.float32) -> Iterator[tuple[Tensor, int, int]]:
    """Yield arguments to compare `launch` with `reference`: odd numbers of rows, narrow heads, a row of zeros."""
    for seed, (heads, kv_heads, rows, width, count) in enumerate(((4, 2, 150, 64, 37), (3, 3, 33, 80, 33))):
        q = torch.randn(heads, rows, width, generator=torch.Generator().manual_seed(seed))
        q[0, 3] = 0
        yield q.to(device, dtype), kv_heads, count
