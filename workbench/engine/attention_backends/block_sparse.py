"""Attention over kept tiles in plain torch, tile by tile of the queries: what is not kept is not computed.

For a CPU, where a mask for every head costs more than the attention that it hides. Heads whose lists differ in length
are computed together, the shorter ones filled up with tiles that no row sees. Where single columns are kept besides, a
list names keys instead of tiles.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from workbench.core.tiling.tiles import Tiles


def attention(q: Tensor, keys: Tensor, values: Tensor, rows: Tensor, tiles: Tiles, scale: float | None) -> Tensor:
    """Return the attention of q [Hq, R, D] at positions `rows` [R] over keys and values [H, T, D]: [Hq, R, Dv].

    Causal, within kept tiles and columns. A row that sees nothing gets 0.
    """
    heads, kv_heads, length = len(q), len(keys), keys.shape[1]
    whole = tiles.columns is None
    size = tiles.size if whole else 1  # keys that an entry of a list stands for
    group, count = heads // kv_heads, -(-length // size)
    alike = group if whole and tiles.shared % group == 0 else 1  # heads that share a list are one longer query
    owner = torch.arange(0, heads, alike, device=q.device)[:, None] // group * count
    keys, values = (pad(x, (0, 0, 0, -length % size)).reshape(kv_heads * count, -1) for x in (keys, values))
    begins, inside = torch.arange(count, device=q.device) * size, torch.arange(size, device=q.device)
    hidden = q.new_tensor(float("-inf"))
    out = q.new_zeros(heads, q.shape[1], values.shape[1] // size)
    for at in range(0, len(rows), tiles.size):
        here = rows[at : at + tiles.size]
        kept = tiles.kept[::alike, at // tiles.size].repeat_interleave(tiles.size // size, 1)[:, :count]
        if tiles.columns is not None:
            kept = kept | tiles.columns[:, :count]
        kept = kept & (begins <= here[-1])
        if not (most := int(kept.sum(1).max())):
            continue
        listed = kept.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :most]
        places = (begins[listed][..., None] + inside).flatten(1)[:, None]  # [lists, 1, K]
        seen = kept.gather(1, listed).repeat_interleave(size, 1)[:, None] & (places <= here[:, None])
        bias = torch.where(seen, 0.0, hidden)[:, None]
        k, v = (_only(x, (owner + listed).flatten(), (len(listed), alike, most * size)) for x in (keys, values))
        mine = q[:, at : at + tiles.size].unflatten(0, (-1, alike))
        found = scaled_dot_product_attention(mine, k, v, bias, scale=scale)
        sees = (places[:, :, 0] <= here) & kept.any(1)[:, None]  # a row that sees the first key of its list
        if not bool(sees.all()):
            found = found.masked_fill(~sees[:, None, :, None], 0.0)
        out[:, at : at + tiles.size] = found.flatten(0, 1)
    return out


def _only(tiles: Tensor, listed: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """[lists, heads, K, D] of tiles [N, size · D]; the heads of a list share its keys without copies."""
    lists, alike, length = shape
    return tiles.index_select(0, listed).view(lists, 1, length, -1).expand(-1, alike, -1, -1)
