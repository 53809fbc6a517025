"""Attention on a CPU in plain torch: over selected blocks, and of a question over a long cache.

Over selected blocks, tile by tile of the queries, what is not selected is not computed: a mask for every head costs
more than the attention that it hides. Heads whose lists differ in length are computed together, the shorter ones filled
up with tiles that no row sees. Where single columns are kept besides, a list names keys instead of tiles.

A question over a long cache takes products and a softmax for each KV head, without a mask. Query heads that share a KV
head are rows of one product, so keys and values are read once for all of them. Only the part in which the rows see each
other is causal; everything before it is seen whole. As many KV heads are computed at a time as there are threads, so
each thread has one whole product, and the logits of its head lie in its processor's own cache; they are written over by
their softmax.
"""

from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from workbench.core.tiling.tiles import Tiles


def over_tiles(q: Tensor, keys: Tensor, values: Tensor, rows: Tensor, tiles: Tiles, scale: float | None) -> Tensor:
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


ROWS = 256  # most rows of a KV head, its query heads counted apart; above, torch's own attention is as fast
LENGTH = 512  # least keys


def suits(q: Tensor, keys: Tensor) -> bool:
    """Whether `over_few_rows` is the faster way for q [Hq, R, D] over keys [H, T, D]: a few rows in fp32 on a CPU."""
    heads, rows, _ = q.shape
    kv_heads, length, _ = keys.shape
    on_cpu = q.device.type == "cpu" and q.dtype == keys.dtype == torch.float32
    return on_cpu and 1 < rows < length and heads // kv_heads * rows <= ROWS and length >= LENGTH


def over_few_rows(q: Tensor, keys: Tensor, values: Tensor, scale: float | None = None) -> Tensor:
    """Attend causally with q [Hq, R, D], the last R of T tokens, over keys and values [H, T, D] -> [Hq, R, D].

    The same numbers as `scaled_dot_product_attention` with a causal mask aligned at the end, to rounding.
    """
    heads, rows, width = q.shape
    kv_heads, length, _ = keys.shape
    group = heads // kv_heads
    scale = width**-0.5 if scale is None else scale
    later = _later(rows)
    together = max(1, min(kv_heads, torch.get_num_threads()))
    logits = q.new_empty(together, group * rows, length)
    own = logits.view(together, group, rows, length)[..., length - rows :]
    out = q.new_empty(kv_heads, group * rows, values.shape[-1])
    queries = q.reshape(kv_heads, group * rows, width)
    keys = keys.mT
    for at in range(0, kv_heads, together):
        some = slice(at, min(at + together, kv_heads))
        count = some.stop - at
        now = logits[:count]
        torch.baddbmm(now, queries[some], keys[some], beta=0, alpha=scale, out=now)
        own[:count].add_(later)
        torch.softmax(now, -1, out=now)
        torch.bmm(now, values[some], out=out[some])
    return out.view(heads, rows, -1)


@lru_cache(maxsize=8)
def _later(rows: int) -> Tensor:
    """What hides the rows [R, R] behind a row from it: added to logits, -inf there and 0 elsewhere."""
    return torch.full((rows, rows), float("-inf"), dtype=torch.float32, device="cpu").triu_(1)
