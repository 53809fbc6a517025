"""Kept tiles as the rising lists that attention kernels take, made on the device: nothing waits for it, nothing comes
back from it. `indices` has room for everything and is unwritten behind the last list."""

import torch
from torch import Tensor

from workbench.kernels._triton import jit, tl, triton


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


def launch(kept: Tensor, first: int = 0, share: int = 1) -> tuple[Tensor, Tensor]:
    """[B, G, I, J] bool (or fewer axes, or a view) as (indptr [N + 1], indices), int32; tiles of list n count from
    n // share · first. Two kernels and a running sum."""
    four = kept[(None,) * (4 - kept.ndim)] if kept.ndim < 4 else kept
    if four.stride(-1) != 1:
        four = four.contiguous()
    batch, groups, tiles, columns = four.shape
    steps, lists = four.stride()[:3], batch * groups * tiles
    raw, counts = four.view(torch.uint8), torch.empty(lists + 1, dtype=torch.int32, device=kept.device)
    chunk = min(1024, max(64, triton.next_power_of_2(columns)))
    warps = max(1, chunk // 256)
    _count[(lists,)](raw, counts, groups, tiles, columns, *steps, CHUNK=chunk, num_warps=warps)
    indptr = counts.cumsum(0, dtype=torch.int32)
    indices = torch.empty(lists * columns + 1, dtype=torch.int32, device=kept.device)
    _write[(lists,)](raw, indptr, indices, groups, tiles, columns, *steps, first, share, CHUNK=chunk, num_warps=warps)
    return indptr, indices
