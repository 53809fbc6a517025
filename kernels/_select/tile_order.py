"""Which tiles of squares a row sees, as programs of `_choose_hopper` take them: one after the other, none in vain.

order      [1 + tiles] int32: how many tiles of a head are seen, then row tile · 65,536 + key tile of each
band       row tiles that are taken together, key tile by key tile
"""

from torch import Tensor

from workbench.kernels._shared.triton_import import jit, tl, triton


@jit
def _seen(rows, tile, count, row_squares, row_tiles, key_tiles, STRIDE: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    """Key tiles that row tiles see, whose last row stands highest."""
    end = tl.minimum(tl.minimum((tile + 1) * M, row_squares) * STRIDE, count) - 1
    last = tl.load(rows + end, mask=tile < row_tiles, other=-1)
    return tl.where(last < 0, 0, tl.minimum(last // (N * STRIDE) + 1, key_tiles)).to(tl.int32)


@jit
def _number(
    rows, order, count, row_squares, row_tiles, key_tiles, STRIDE: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    BAND: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Write `order`: key tile by key tile of a band of row tiles, band by band."""
    tile, request = tl.program_id(0), tl.program_id(1).to(tl.int64)
    rows += request * count
    order += request * (1 + row_tiles * key_tiles)
    first = tile // BAND * BAND
    every, near, n = tl.arange(0, ROWS), first + tl.arange(0, BAND), tl.arange(0, KEYS)
    seen = _seen(rows, every, count, row_squares, row_tiles, key_tiles, STRIDE, M, N)
    beside = _seen(rows, near, count, row_squares, row_tiles, key_tiles, STRIDE, M, N)
    own = tl.sum(tl.where(near == tile, beside, 0), 0)
    place = tl.sum(tl.where(every < first, seen, 0), 0) + tl.sum(tl.minimum(beside[:, None], n[None, :]), 0)
    place += tl.sum(((near < tile)[:, None] & (beside[:, None] > n[None, :])).to(tl.int32), 0)
    tl.store(order + 1 + place, tile * 65536 + n, mask=n < own)
    if tile == 0:
        tl.store(order, tl.sum(seen, 0))


def write(
    rows: Tensor,
    order: Tensor,
    count: int,
    row_squares: int,
    row_tiles: int,
    key_tiles: int,
    stride: int,
    high: int,
    wide: int,
    band: int,
) -> None:
    """Write `order` [B, 1 + row_tiles * key_tiles] int32 of tiles of `high` by `wide` squares, for rows [B, R]."""
    _number[(row_tiles, len(rows))](
        rows, order, count, row_squares, row_tiles, key_tiles, STRIDE=stride, M=high, N=wide, BAND=band,
        ROWS=triton.next_power_of_2(row_tiles), KEYS=triton.next_power_of_2(key_tiles), num_warps=4,
    )  # fmt: skip
