"""Few rows of several requests over a context that all of them share, and over pages of their own.

    shared_attention(q [B, Hq, R, D], keys [H, T, D], values [H, T, D], rows [B, R], shared, own, inv_freq, pairing,
                     scale) -> [B, Hq, R, D], same dtype

What `question_attention` computes for requests whose page tables are `shared` (one for all, `Paged` of batch 1) and
`own` (of batch B). The rows of all requests are one tile of the matrix product over the shared pages, which so are read
once and not once a request; each request reads its own pages; the parts are merged by their weight in the softmax
(Hydragen, arXiv:2402.05099).
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from workbench.core.page_table import INVALID_POS, Paged
from workbench.core.rope import Pairing
from workbench.kernels import _pages_triton
from workbench.kernels._common import LOG2E, rows_first
from workbench.kernels._triton import jit, need_triton, tl, triton
from workbench.kernels.question_attention import RESIDENT, configure

__all__ = ["cases", "launch", "reference"]


def reference(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    rows: Tensor,
    shared: Paged,
    own: Paged,
    inv_freq: Tensor | None = None,
    pairing: Pairing = "neox",
    scale: float | None = None,
) -> Tensor:
    """Computed in the dtype of `q`, request by request over both lists of pages."""

    def both(name: str) -> Tensor:
        first, second = getattr(shared, name), getattr(own, name)
        return torch.cat((first.expand(len(q), *first.shape[1:]), second), 1)

    shifts = None
    if shared.shifts is not None or own.shifts is not None:
        still = [torch.zeros_like(x.table) if x.shifts is None else x.shifts for x in (shared, own)]
        shifts = torch.cat((still[0].expand(len(q), -1), still[1]), 1)
    pages = Paged.of(both("table"), both("positions"), shifts)
    return _pages_triton.reference(q, keys, values, rows, pages, inv_freq, pairing, scale)


@jit
def _weights(lse, place, splits, SPLITS: tl.constexpr):
    i = tl.arange(0, SPLITS)
    return tl.load(lse + place * splits + i, mask=i < splits, other=float("-inf"))


@jit
def _sum(parts, place, splits, weight, SPLITS: tl.constexpr, D: tl.constexpr, DP: tl.constexpr):
    i, col = tl.arange(0, SPLITS), tl.arange(0, DP)
    there = (weight > 0)[:, None] & (col < D)[None, :]
    part = tl.load(parts + (place * splits + i[:, None]) * D + col[None, :], mask=there, other=0.0)
    return tl.sum(part * weight[:, None], 0)


@jit
def _merge(
    shared, shared_lse, shared_splits, own, own_lse, own_splits, out, batch, heads, count,
    out_batch, out_head, out_token,
    SHARED: tl.constexpr, OWN: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
):  # fmt: skip
    """One row: the parts over the shared pages [1, Hq, B · R, S, D] and its own [B, Hq, R, S, D]."""
    place = tl.program_id(0).to(tl.int64)
    request, head, row = place // count // heads, place // count % heads, place % count
    there = (head * batch + request) * count + row
    a, b = _weights(shared_lse, there, shared_splits, SHARED), _weights(own_lse, place, own_splits, OWN)
    top = tl.maximum(tl.max(a, 0), tl.max(b, 0))
    top = tl.where(top == float("-inf"), 0.0, top)
    a, b = tl.exp2(a - top), tl.exp2(b - top)
    total = tl.sum(a, 0) + tl.sum(b, 0)
    result = _sum(shared, there, shared_splits, a, SHARED, D, DP) + _sum(own, place, own_splits, b, OWN, D, DP)
    result = result / tl.where(total > 0, total, 1.0)
    target = out + request * out_batch + head * out_head + row * out_token
    col = tl.arange(0, DP)
    tl.store(target + col, result.to(out.dtype.element_ty), mask=col < D)


def launch(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    rows: Tensor,
    shared: Paged,
    own: Paged,
    inv_freq: Tensor | None = None,
    pairing: Pairing = "neox",
    scale: float | None = None,
) -> Tensor:
    """The Triton kernels: CUDA tensors, or CPU tensors under TRITON_INTERPRET=1 (there in fp32 or fp16 only)."""
    need_triton("shared_attention")
    batch, heads, count, width = q.shape
    together = q.transpose(0, 1).flatten(1, 2)[None]  # [1, Hq, B · R, D]
    one, one_lse = _parts(together, keys, values, rows.reshape(1, -1), shared, inv_freq, pairing, scale)
    two, two_lse = _parts(q, keys, values, rows, own, inv_freq, pairing, scale)
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    _merge[(batch * heads * count,)](
        one, one_lse, one.shape[3], two, two_lse, two.shape[3], out, batch, heads, count, *out.stride()[:3],
        SHARED=triton.next_power_of_2(one.shape[3]), OWN=triton.next_power_of_2(two.shape[3]), D=width,
        DP=triton.next_power_of_2(width),
    )  # fmt: skip
    return out


def _parts(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    rows: Tensor,
    pages: Paged,
    inv_freq: Tensor | None,
    pairing: Pairing,
    scale: float | None,
) -> tuple[Tensor, Tensor]:
    """Parts [B, Hq, R, S, D] and the log2 of their weights [B, Hq, R, S], fp32."""
    q, keys, values = rows_first(q), rows_first(keys), rows_first(values)
    batch, q_heads, count, width = q.shape
    heads, size = len(keys), pages.positions.shape[-1]
    config = configure(count * (q_heads // heads), width, q.dtype)
    splits = _pages_triton.parts_for(config, q, heads, pages, RESIDENT[config.rows])
    turns = pages.shifts is not None
    tiles, table = triton.cdiv(count * (q_heads // heads), config.rows), pages.table
    parts = torch.empty((batch, q_heads, count, splits, width), dtype=torch.float32, device=q.device)
    lse = torch.empty(parts.shape[:4], dtype=torch.float32, device=q.device)
    _pages_triton._attend[(tiles * heads, splits, batch)](
        q, keys, values, parts, lse, rows.contiguous(), table, pages.positions, pages.first, pages.last,
        pages.shifts if turns else table, inv_freq if turns else table,
        (width**-0.5 if scale is None else scale) * LOG2E, count, table.shape[1],
        *q.stride()[:3], *keys.stride()[:2], *values.stride()[:2], *parts.stride()[:4], tiles, splits,
        GROUP=q_heads // heads, SPLIT=True, PAGE=size, D=width, DP=triton.next_power_of_2(width),
        HALF=len(inv_freq) if inv_freq is not None else 0, INTERLEAVED=pairing == "interleaved", ROTATE=turns,
        PARTIAL_PAGES=pages.partial_pages, BLOCK_M=config.rows,
        BLOCK_N=min(config.keys, size) if turns else config.keys,
        CHUNK=min(triton.next_power_of_2(table.shape[1]), 2048),
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32", num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip
    return parts, lse


def cases(device: str = "cpu", dtype: torch.dtype = torch.float32) -> Iterator[tuple[Any, ...]]:
    """Arguments on which `launch` must equal `reference`: groups, moving pages, one request, a row that is none."""
    one = _pages_triton.case
    common: dict[str, Any] = {"device": device, "dtype": dtype}
    yield _split(one(1, contexts=[[0, 1]] * 3, blocks=[37, 66], asked=[1, 1, 1], **common), 8)
    yield _split(one(2, device, dtype, [[1, 0]] * 2, [40, 19], [3, 2], width=128, pairing="neox"), 5)
    yield _split(one(3, contexts=[[0]] * 4, blocks=[101], asked=[1] * 4, width=80, heads=(3, 1), page=32, **common), 4)
    yield _split(one(4, contexts=[[0, 1]], blocks=[16, 33], asked=[2], width=256, heads=(2, 2), **common), 4)
    q, keys, values, rows, *rest = _split(one(5, contexts=[[0]] * 2, blocks=[50], asked=[1, 1], **common), 4)
    yield q, keys, values, torch.where(torch.arange(2, device=device)[:, None] == 1, -1, rows), *rest


def _split(case: tuple[Any, ...], count: int) -> tuple[Any, ...]:
    """A case of `_pages_triton` whose requests begin with the same `count` pages, cut behind them."""
    q, keys, values, rows, pages, inv_freq, pairing = case
    parts = []
    for at in (slice(0, count), slice(count, None)):
        shifts = None if pages.shifts is None else pages.shifts[:, at]
        parts.append((pages.table[:, at], pages.positions[:, at], shifts))
    (table, positions, shifts), own = parts
    assert (
        (table == table[:1]).all() and (positions == positions[:1]).all() and not (positions[:, 0] == INVALID_POS).any()
    )
    shared = Paged.of(table[:1], positions[:1], None if shifts is None else shifts[:1])
    return q, keys, values, rows, shared, Paged.of(*own), inv_freq, pairing
