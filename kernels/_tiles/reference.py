"""Torch reference of `_tiles.triton_kernel`, with random inputs and selections for comparisons."""

from collections.abc import Iterator

import torch
from torch import Tensor

from workbench.kernels._shared.attention import attend


def reference(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    rows: Tensor,
    indptr: Tensor | None = None,
    indices: Tensor | None = None,
    size: int = 128,
    queries: int = 128,
    scale: float | None = None,
    *,
    strided: bool = False,
) -> Tensor:
    """Compute the result in torch, in the dtype of `q`.

    `strided`: tile indices of a KV head include the offset of its first tile in [B · H · T / size].
    """
    batch, q_heads, count, _ = q.shape
    heads, length = keys.shape[1:3]
    out = torch.empty_like(q)
    at = torch.arange(length, device=q.device)
    for b in range(batch):
        seen = (at <= rows[b, :, None]).expand(q_heads, count, length)
        if indptr is not None:
            assert indices is not None
            kept = _dense(indptr, indices, batch, b, heads, -(-count // queries), -(-length // size), strided)
            tile = torch.arange(count, device=q.device) // queries
            seen = seen & kept.repeat_interleave(q_heads // len(kept), 0)[:, tile][:, :, at // size]
        blank = (at > rows[b].max()) | ~seen.any(0).any(0)  # masked keys, which may be NaN
        k, v = (x[b].masked_fill(blank[:, None], 0) for x in (keys, values))
        out[b] = attend(q[b], k, v, seen, scale)
    return out


def _dense(
    indptr: Tensor, indices: Tensor, batch: int, b: int, heads: int, tiles: int, length: int, strided: bool
) -> Tensor:
    """Convert the lists of one request to [G, I, J] bool."""
    groups = (len(indptr) - 1) // (batch * tiles)
    kept = torch.zeros(groups, tiles, length, dtype=torch.bool, device=indptr.device)
    for g in range(groups):
        first = (b * heads + g * heads // groups) * length if strided else 0
        for i in range(tiles):
            at = (b * groups + g) * tiles + i
            kept[g, i, indices[indptr[at] : indptr[at + 1]].long() - first] = True
    return kept


def random_choice(
    seed: int, batch: int, groups: int, tiles: int, length: int, size: int, share: float, rows: Tensor, queries: int
) -> Tensor:
    """Draw a selection [B, G, I, J] (bool, CPU): a share of all tiles, and the own tile of each row."""
    draw = torch.Generator().manual_seed(seed)
    kept = torch.rand(batch, groups, tiles, -(-length // size), generator=draw) < share
    for b, i, j in _own(rows.cpu(), queries, size):
        kept[b, :, i, j] = True
    return kept


def _own(rows: Tensor, queries: int, size: int) -> Iterator[tuple[int, int, int]]:
    for b, positions in enumerate(rows.tolist()):
        yield from ((b, r // queries, at // size) for r, at in enumerate(positions) if at >= 0)


def pool(
    seed: int, batch: int, heads: tuple[int, int], count: int, length: int, width: int, device: str, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw q [B, Hq, R, D], and keys and values [B, H, T, D] with NaN in memory after each head."""
    draw = torch.Generator().manual_seed(seed)
    q = torch.randn(batch, heads[0], count, width, generator=draw)
    pools = []
    for _ in range(2):
        wide = torch.full((batch, heads[1], length + 3, width), torch.nan)
        wide[:, :, :length] = torch.randn(batch, heads[1], length, width, generator=draw)
        pools.append(wide.to(device, dtype)[:, :, :length])
    return q.to(device, dtype), pools[0], pools[1]
