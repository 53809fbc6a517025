"""Sparse selections as the rising lists that attention kernels read: tiles per query tile, or pages per group of heads.

On a GPU kernels build them (`make_lists`) without synchronization: `indices` has room for the longest lists, and is
unwritten after the last one. Elsewhere torch builds them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from workbench.core.errors import BadInput
from workbench.core.tiling.tiles import Tiles, ragged
from workbench.kernels._shared.triton_import import jit, tl, triton

TOGETHER = 1024  # tiles that a program reads at a time, for several lists
FEW = 32  # up to this many lists, one kernel builds all: each program counts the lists before its own


@jit
def _starts(n, groups, tiles, batch_step, group_step, tile_step):
    """Return the offsets of the selections of lists n."""
    n = n.to(tl.int64)
    return n // (groups * tiles) * batch_step + n // tiles % groups * group_step + n % tiles * tile_step


@jit
def _count(
    kept, counts, lists, groups, tiles, columns, batch_step, group_step, tile_step,
    LISTS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * LISTS + tl.arange(0, LISTS)
    kept += _starts(n, groups, tiles, batch_step, group_step, tile_step)[:, None]
    found = tl.zeros([LISTS, CHUNK], tl.int32)
    for at in range(0, columns, CHUNK):
        j = at + tl.arange(0, CHUNK)[None, :]
        found += tl.load(kept + j, mask=(n < lists)[:, None] & (j < columns), other=0).to(tl.int32)
    tl.store(counts + n + 1, tl.sum(found, 1), mask=n < lists)
    if tl.program_id(0) == 0:
        tl.store(counts, 0)


@jit
def _write(
    kept, indptr, indices, lists, groups, tiles, columns, batch_step, group_step, tile_step, first, share,
    LISTS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * LISTS + tl.arange(0, LISTS)
    kept += _starts(n, groups, tiles, batch_step, group_step, tile_step)[:, None]
    place, begin = tl.load(indptr + n, mask=n < lists, other=0), n // share * first
    for at in range(0, columns, CHUNK):
        j = at + tl.arange(0, CHUNK)[None, :]
        one = tl.load(kept + j, mask=(n < lists)[:, None] & (j < columns), other=0).to(tl.int32)
        spot = (place[:, None] + tl.cumsum(one, 1) - 1).to(tl.int64)
        tl.store(indices + spot, begin[:, None] + j, mask=one > 0)
        place += tl.sum(one, 1)


@jit
def _few(
    kept, indptr, indices, groups, tiles, columns, batch_step, group_step, tile_step, first, share,
    LISTS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Build all lists in one launch: each program counts the lists before its own."""
    n, lists = tl.program_id(0), tl.num_programs(0)
    m = tl.arange(0, LISTS)
    starts = _starts(m, groups, tiles, batch_step, group_step, tile_step)
    before = tl.zeros([LISTS, CHUNK], tl.int32)
    for at in range(0, columns, CHUNK):
        j = at + tl.arange(0, CHUNK)
        before += tl.load(kept + starts[:, None] + j[None, :], mask=(m < n)[:, None] & (j < columns)[None, :], other=0)
    place, begin = tl.sum(tl.sum(before, 1), 0), n // share * first
    tl.store(indptr + n, place)
    kept += n // (groups * tiles) * batch_step + n // tiles % groups * group_step + n % tiles * tile_step
    for at in range(0, columns, CHUNK):
        j = at + tl.arange(0, CHUNK)
        one = tl.load(kept + j, mask=j < columns, other=0).to(tl.int32)
        tl.store(indices + (place + tl.cumsum(one, 0) - 1).to(tl.int64), begin + j, mask=one > 0)
        place += tl.sum(one, 0)
    if n == lists - 1:
        tl.store(indptr + lists, place)


def make_lists(kept: Tensor, first: int = 0, share: int = 1) -> tuple[Tensor, Tensor]:
    """Convert [B, G, I, J] bool (or fewer axes, or a view) to lists (indptr [N + 1], indices), int32.

    Indices of list n are offset by n // share · first. Two kernels and a cumulative sum; one kernel for few lists."""
    four = kept[(None,) * (4 - kept.ndim)] if kept.ndim < 4 else kept
    if four.stride(-1) != 1:
        four = four.contiguous()
    batch, groups, tiles, columns = four.shape
    steps, lists = four.stride()[:3], batch * groups * tiles
    raw = four.view(torch.uint8)
    if 0 < lists <= FEW:
        place = (lists + 4) // 4 * 4  # start of the indices, aligned to 16 bytes like a tensor
        indptr = torch.empty(place + lists * columns + 1, dtype=torch.int32, device=kept.device)
        indices = indptr[place:]
        tensors = raw, indptr, indices, groups, tiles, columns, *steps, first, share
        constants = {"LISTS": triton.next_power_of_2(lists), "CHUNK": 128}
        _few[(lists,)](*tensors, **constants, num_warps=4)
        return indptr[: lists + 1], indices
    counts = torch.empty(lists + 1, dtype=torch.int32, device=kept.device)
    chunk = min(1024, max(64, triton.next_power_of_2(columns)))
    side = max(1, TOGETHER // chunk)
    programs, shape = triton.cdiv(lists, side), (groups, tiles, columns, *steps)
    options = {"LISTS": side, "CHUNK": chunk, "num_warps": max(1, chunk // 256)}
    _count[(programs,)](raw, counts, lists, *shape, **options)
    indptr = counts.cumsum(0, dtype=torch.int32)
    indices = torch.empty(lists * columns + 1, dtype=torch.int32, device=kept.device)
    _write[(programs,)](raw, indptr, indices, lists, *shape, first, share, **options)
    return indptr, indices


@dataclass(frozen=True)
class PageLists:
    """The page table of a paged attention kernel for a batch (CompactAttention, section 3.3).

    Keys [B, Hkv, L, D] are read in place as [B · Hkv · L / page, page, 1, D]: page j of KV head h of request b has
    number (b · Hkv + h) · L / page + j. A row of the table serves `heads` query heads of one request; rows are ordered
    by request, KV head, execution group.
    """

    indptr: Tensor  # [B · Hkv · groups + 1] int32
    indices: Tensor  # [pages read] int32, ascending within a row
    size: int  # tokens of a page
    heads: int  # query heads of an execution group


def tile_lists(tiles: Tiles, rows: int, length: int) -> tuple[Tensor, Tensor]:
    """Build rising lists of key tiles for `rows` over `length` keys: (indptr [N + 1], indices), int32.

    Lists are ordered by group of `tiles.shared` heads, then query tile. Raises BadInput for tiles that do not cover
    rows and keys.
    """
    return lists_of(tiles.covering(rows, length))


def lists_of(kept: Tensor, first: int = 0, share: int = 1) -> tuple[Tensor, Tensor]:
    """Convert [G, I, J] bool to lists: (indptr [G · I + 1], indices), int32; list n is offset by n // share · first."""
    on_gpu = kept.is_cuda and kept.numel() and triton is not None
    return make_lists(kept, first, share) if on_gpu else ragged(kept, first, share)


def pages(choices: Sequence[Tiles], kv_heads: int, heads: int, capacity: int) -> PageLists:
    """Build the page table of a batch: the union of each request's selection over rows and groups of `heads` heads.

    `capacity`: pages per KV head in the cache. Raises BadInput if a selection does not fit the cache, or a group of
    `heads` would read two KV heads.
    """
    for choice in choices:
        group = choice.kept.shape[0] // kv_heads
        if choice.kept.shape[0] % kv_heads or group % heads:
            raise BadInput(
                f"{heads} heads cannot share a page list: {choice.kept.shape[0]} query heads read {kv_heads} KV heads"
            )
        if choice.kept.shape[2] > capacity:
            raise BadInput(f"a choice over {choice.kept.shape[2]} pages does not fit a cache of {capacity} for a head")
    kept = [choice.paged().kept for choice in choices]
    if len({x.shape for x in kept}) == 1:
        union = union_of(torch.stack(kept), heads)
    else:
        widest = max(x.shape[2] for x in kept)
        union = torch.cat([union_of(pad(x, (0, widest - x.shape[2]))[None], heads) for x in kept])
    return page_table(union, kv_heads, heads, capacity, choices[0].size)


def union_of(kept: Tensor, heads: int) -> Tensor:
    """Return the union [B, G, J] of [B, Hq, I, J] over query tiles and groups of `heads` adjacent heads."""
    return kept.unflatten(1, (-1, heads)).any((2, 3))


def page_table(union: Tensor, kv_heads: int, heads: int, capacity: int, size: int) -> PageLists:
    """Build a page table of unions [B, G, J] (bool) of groups of `heads` query heads, J at most `capacity`."""
    indptr, indices = lists_of(union.flatten(0, 1)[:, None], capacity, union.shape[1] // kv_heads)
    return PageLists(indptr, indices, size, heads)
