"""Kept tiles as the rising lists that attention kernels take, made on the device: nothing waits for it, nothing comes
back from it. `indices` has room for everything and is unwritten behind the last list."""

import torch
from torch import Tensor

from workbench.kernels._triton import jit, tl, triton

FEW = 32  # lists that one kernel makes: each of its programs reads those before its own


@jit
def _count(kept, counts, groups, tiles, columns, batch_step, group_step, tile_step, CHUNK: tl.constexpr):
    n = tl.program_id(0)
    batch, group, tile = n // (groups * tiles), n // tiles % groups, n % tiles
    kept += batch.to(tl.int64) * batch_step + group.to(tl.int64) * group_step + tile.to(tl.int64) * tile_step
    found = tl.zeros([CHUNK], tl.int32)
    for at in range(0, columns, CHUNK):
        j = at + tl.arange(0, CHUNK)
        found += tl.load(kept + j, mask=j < columns, other=0).to(tl.int32)
    tl.store(counts + n + 1, tl.sum(found, 0))
    if n == 0:
        tl.store(counts, 0)


@jit
def _write(
    kept, indptr, indices, groups, tiles, columns, batch_step, group_step, tile_step, first, share, CHUNK: tl.constexpr
):
    n = tl.program_id(0)
    batch, group, tile = n // (groups * tiles), n // tiles % groups, n % tiles
    kept += batch.to(tl.int64) * batch_step + group.to(tl.int64) * group_step + tile.to(tl.int64) * tile_step
    place, begin = tl.load(indptr + n), n // share * first
    for at in range(0, columns, CHUNK):
        j = at + tl.arange(0, CHUNK)
        one = tl.load(kept + j, mask=j < columns, other=0).to(tl.int32)
        tl.store(indices + (place + tl.cumsum(one, 0) - 1).to(tl.int64), begin + j, mask=one > 0)
        place += tl.sum(one, 0)


@jit
def _few(
    kept, indptr, indices, groups, tiles, columns, batch_step, group_step, tile_step, first, share,
    LISTS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """All of it in one launch: a program counts the lists before its own itself."""
    n, lists = tl.program_id(0), tl.num_programs(0)
    m = tl.arange(0, LISTS).to(tl.int64)
    starts = m // (groups * tiles) * batch_step + m // tiles % groups * group_step + m % tiles * tile_step
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


def launch(kept: Tensor, first: int = 0, share: int = 1) -> tuple[Tensor, Tensor]:
    """[B, G, I, J] bool (or fewer axes, or a view) as (indptr [N + 1], indices), int32; tiles of list n count from
    n // share · first. Two kernels and a running sum; one kernel
    where lists are few."""
    four = kept[(None,) * (4 - kept.ndim)] if kept.ndim < 4 else kept
    if four.stride(-1) != 1:
        four = four.contiguous()
    batch, groups, tiles, columns = four.shape
    steps, lists = four.stride()[:3], batch * groups * tiles
    raw = four.view(torch.uint8)
    if 0 < lists <= FEW:
        place = (lists + 4) // 4 * 4  # of the indices: 16 bytes, as a tensor of their own would begin
        indptr = torch.empty(place + lists * columns + 1, dtype=torch.int32, device=kept.device)
        indices = indptr[place:]
        _few[(lists,)](
            raw, indptr, indices, groups, tiles, columns, *steps, first, share,
            LISTS=triton.next_power_of_2(lists), CHUNK=128, num_warps=4,
        )  # fmt: skip
        return indptr[: lists + 1], indices
    counts = torch.empty(lists + 1, dtype=torch.int32, device=kept.device)
    chunk = min(1024, max(64, triton.next_power_of_2(columns)))
    warps = max(1, chunk // 256)
    _count[(lists,)](raw, counts, groups, tiles, columns, *steps, CHUNK=chunk, num_warps=warps)
    indptr = counts.cumsum(0, dtype=torch.int32)
    indices = torch.empty(lists * columns + 1, dtype=torch.int32, device=kept.device)
    _write[(lists,)](raw, indptr, indices, groups, tiles, columns, *steps, first, share, CHUNK=chunk, num_warps=warps)
    return indptr, indices
