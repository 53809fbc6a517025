"""CompactAttention's union over the query tiles of a chunk and the heads of a group, in one launch.

    launch(kept [Hq, I, J] bool, rows [R], size, heads) -> [Hq, I, J] bool

It includes the tiles of the rows themselves, as far as the causal mask allows. `rows` are rising positions in row tiles
of `size`; groups are `heads` neighbouring heads (CompactAttention, section 3.2).
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from workbench.core.tiling.tiles import Grid
from workbench.kernels._select.keep import near
from workbench.kernels._shared.triton_import import jit, need_triton, tl, triton

LISTS, COLUMNS = 64, 64  # lists read at a time, key tiles per program


def reference(kept: Tensor, rows: Tensor, size: int, heads: int) -> Tensor:
    """Compute `launch` in torch."""
    return Grid(rows, kept.shape[-1] * size, size).union_over_groups(kept, heads)


@jit
def _unite(
    kept,
    rows,
    out,
    final,
    tiles,
    columns,
    heads,
    SIZE: tl.constexpr,
    LISTS: tl.constexpr,
    COLUMNS: tl.constexpr,
    HALVINGS: tl.constexpr,
):
    """Unite the lists of a group for some key tiles; `final` is the index of the last row."""
    column, m = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS), tl.arange(0, LISTS)
    lists = heads * tiles
    first = tl.program_id(1).to(tl.int64) * lists
    found = tl.zeros([LISTS, COLUMNS], tl.uint8)
    for at in range(0, lists, LISTS):
        there = (at + m < lists)[:, None] & (column < columns)[None, :]
        found |= tl.load(kept + (first + at + m)[:, None] * columns + column[None, :], mask=there, other=0)
    start, last = tl.load(rows), tl.load(rows + final)
    union = (tl.max(found.to(tl.int32), 0) > 0) | near(rows, 0, final + 1, start, last, column, 0, SIZE, HALVINGS)
    for at in range(0, lists, LISTS):
        tile = (at + m) % tiles
        end = tl.load(rows + tl.minimum((tile + 1) * SIZE - 1, final))
        keep = union[None, :] & (column.to(tl.int64)[None, :] * SIZE <= end[:, None])
        there = (at + m < lists)[:, None] & (column < columns)[None, :]
        tl.store(out + (first + at + m)[:, None] * columns + column[None, :], keep.to(tl.uint8), mask=there)


def launch(kept: Tensor, rows: Tensor, size: int, heads: int) -> Tensor:
    """Run the Triton kernel on CUDA tensors, or on CPU tensors under TRITON_INTERPRET=1."""
    need_triton("unite")
    kept, rows = kept.contiguous(), rows.contiguous()
    count, (all_heads, tiles, columns) = len(rows), kept.shape
    out = torch.empty_like(kept)
    constants = {"SIZE": size, "LISTS": LISTS, "COLUMNS": COLUMNS, "HALVINGS": count.bit_length()}
    programs = triton.cdiv(columns, COLUMNS), all_heads // heads
    _unite[programs](
        kept.view(torch.uint8), rows, out.view(torch.uint8), count - 1, tiles, columns, heads, **constants, num_warps=4
    )
    return out


def cases(device: str = "cpu", dtype: torch.dtype = torch.bool) -> Iterator[tuple[Tensor, Tensor, int, int]]:
    """Yield arguments to compare `launch` with `reference`: chunks, scattered rows, one row, many lists and tiles."""
    draw = torch.Generator().manual_seed(0)
    for heads, group, rows, length, size in (
        (4, 2, torch.arange(96, 144), 160, 16),
        (6, 3, torch.arange(75, 130), 160, 16),
        (2, 2, torch.randperm(300, generator=draw)[:90].sort().values, 300, 32),
        (2, 1, torch.tensor([147]), 155, 16),
        (8, 8, torch.arange(1000, 1256), 1600, 16),
    ):
        shape = heads, -(-len(rows) // size), -(-length // size)
        yield (torch.rand(shape, generator=draw) < 0.05).to(device, dtype), rows.to(device), size, group
