"""Attention of a question over a long cache on a CPU: products and a softmax for each KV head, without a mask.

Query heads that share a KV head are rows of one product, so keys and values are read once for all of them. Only the
part in which the rows see each other is causal; everything before it is seen whole. As many KV heads are computed at a
time as there are threads, so each thread has one whole product, and the logits of its head lie in its processor's own
cache; they are written over by their softmax.
"""

from functools import lru_cache

import torch
from torch import Tensor

ROWS = 256  # most rows of a KV head, its query heads counted apart; above, torch's own attention is as fast
LENGTH = 512  # least keys


def suits(q: Tensor, keys: Tensor) -> bool:
    """Whether `attend` is the faster way for q [Hq, R, D] over keys [H, T, D]: a few rows in fp32 on a CPU."""
    heads, rows, _ = q.shape
    kv_heads, length, _ = keys.shape
    on_cpu = q.device.type == "cpu" and q.dtype == keys.dtype == torch.float32
    return on_cpu and 1 < rows < length and heads // kv_heads * rows <= ROWS and length >= LENGTH


def attend(q: Tensor, keys: Tensor, values: Tensor, scale: float | None = None) -> Tensor:
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
