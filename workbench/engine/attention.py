"""The one seam with transformers: an attention function that obeys a Plan.

`attend` is registered as attention "workbench". A forward pass carries one or more requests, packed along the sequence
axis without padding ([1, sum of R] rows); each writes its fresh keys and values to its own KV and attends under its
own plan.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from workbench.core.errors import BadInput
from workbench.core.kv import KV
from workbench.core.masks import MaskRule, causal, visible, window
from workbench.core.plan import Plan, Site
from workbench.core.tiles import Tiles
from workbench.engine import backends, block_sparse
from workbench.models.families import unsupported

NAME = "workbench"
MASK_ELEMENTS = (
    1 << 24
)  # a mask is built in row chunks of at most this many elements, and kept from layer to layer below it
PASSED_ON = {  # arguments of a decoder layer that reach its attention function and do not change its result
    "position_ids", "use_cache", "output_attentions", "output_hidden_states", "output_router_logits", "cache_position",
    "position_embeddings", "return_dict", "num_items_in_batch",
}  # fmt: skip


class StopForward(Exception):
    """Raised inside a forward pass when all that was asked for is computed."""


class PackedRequest(Protocol):
    """One request of a packed forward pass."""

    rows: torch.Tensor  # [R] positions
    num_layers: int | None  # stop after this many layers

    def attend(
        self,
        layer: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        size: int | None,
        scale: float | None,
        last: bool,
    ) -> torch.Tensor | None:
        """q [Hq, R, D], k and v [H, R, D] -> [Hq, R, D]; None where the `last` layer's output is not needed."""


def attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    *,
    parts: Sequence[PackedRequest] = (),
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    is_causal: bool | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """[1, H, sum of R, D] each -> [1, sum of R, Hq, D]; transformers' attention interface."""
    if not parts:
        raise BadInput(
            f"attention {NAME!r} needs a plan: call workbench.prefill, "
            "or model.set_attn_implementation('sdpa') for the stock model"
        )
    refuse(module, attention_mask, dropout, {**others, "is_causal": False if is_causal is False else None})
    layer, depths = module.layer_idx, [part.num_layers for part in parts]
    stop = None if None in depths else max(d for d in depths if d)
    lengths = [len(part.rows) for part in parts]
    results = []
    for part, q, k, v in zip(parts, *(x[0].split(lengths, 1) for x in (query, key, value)), strict=True):
        deep_enough = part.num_layers is not None and layer >= part.num_layers
        out = (
            None if deep_enough else part.attend(layer, q, k, v, sliding_window, scaling, part.num_layers == layer + 1)
        )
        results.append(v.new_zeros(q.shape[0], q.shape[1], v.shape[-1]) if out is None else out)
    if stop == layer + 1:
        raise StopForward
    out = results[0] if len(results) == 1 else torch.cat(results, 1)
    return out.transpose(0, 1)[None].contiguous(), None


def refuse(module: Any, mask: Any, dropout: float, others: dict[str, Any]) -> None:
    """Refuse what an attention function of the workbench leaves out: a foreign mask, dropout, unknown arguments."""
    if mask is not None:
        raise BadInput("an attention mask was passed to the model: give the rule to Plan(sees=...) instead")
    if dropout:
        raise BadInput(f"attention dropout {dropout} is on: call model.eval() first")
    for name, value in others.items():
        if value is not None and name not in PASSED_ON:
            raise unsupported(module.config, f"its attention passes {name!r}, which is not implemented")


@dataclass(frozen=True)
class Piece:
    """A run of rows and the columns that they attend to."""

    rows: slice
    cols: slice | torch.Tensor
    bias: torch.Tensor | None = None  # [r, C] or [Hq, r, C], 0 where visible and -inf elsewhere; None: all is visible
    is_causal: bool = False
    blind: torch.Tensor | None = None  # [r] or [Hq, r] bool, rows that see nothing: their result is 0


class PlannedRequest:
    """A plan carried out on one KV: lives for one forward pass and keeps its masks from layer to layer.

    kept   how many of the last rows get logits; in the last layer the others only write their keys and values
    """

    def __init__(self, plan: Plan, kv: KV, device: torch.device, kept: int | None = None):
        self.plan, self.kv, self.num_layers = plan, kv, plan.num_layers
        self._tail: PlannedRequest | None = None
        if kept and kept < len(plan.rows) and not (plan.sparse or plan.backend or plan.num_layers):
            self._tail = PlannedRequest(replace(plan, rows=plan.rows[-kept:], return_queries=()), kv, device)
        self.rows = plan.rows.to(device)
        self.queries: dict[int, torch.Tensor] = {}
        self.backends: dict[int, str] = {}  # what carried out the attention of a layer
        self._first, self._end = int(plan.rows[0]), int(plan.rows[-1]) + 1
        self._whole = self._end - self._first == len(plan.rows)  # a run without gaps
        self._pieces: dict[tuple[int | None, torch.device], list[Piece]] = {}

    def attend(
        self,
        layer: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        size: int | None,
        scale: float | None,
        last: bool,
    ) -> torch.Tensor | None:
        keys, values = self.kv.keys[layer], self.kv.values[layer]
        self._write(keys, k)
        self._write(values, v)
        if layer in self.plan.return_queries:
            self.queries[layer] = q
        if last:
            return None
        if self._tail and layer == len(self.kv.keys) - 1:
            out = v.new_zeros(q.shape[0], q.shape[1], v.shape[-1])
            out[:, -len(self._tail.rows) :] = self._tail.over(layer, q[:, -len(self._tail.rows) :], size, scale)
            self.backends |= self._tail.backends
            return out
        return self.over(layer, q, size, scale)

    def over(self, layer: int, q: torch.Tensor, size: int | None, scale: float | None) -> torch.Tensor:
        """q [Hq, R, D] over the keys and values as they are -> [Hq, R, D]."""
        keys, values = self.kv.keys[layer], self.kv.values[layer]
        rows, sees = self.rows.to(q.device), self.plan.sees
        end = self._end if sees is causal else len(self.kv)
        tiles = self._tiles(layer, q, keys[:, :end], rows, size, scale)
        asked = backends.problem_of(q, keys[:, :end], sees, size, self._whole and not self._first, tiles)
        backend: Any = self.plan.backend or backends.backend_for(asked)
        self.backends[layer] = backends.name_of(backend)
        if backend is not backends.TORCH:
            backends.check(backend, asked)
            rule = MaskRule(sees, "plan") & window(size) if size and asked.windowed else sees
            return backend(q, keys[:, :end], values[:, :end], rows, rule, tiles, scale)
        if tiles is not None and sees is causal and not asked.windowed and not q.is_cuda:
            return block_sparse.attention(q, keys[:, :end], values[:, :end], rows, tiles, scale)
        if tiles is not None:
            pieces: Iterable[Piece] = self._masked(rows, end, size, q.dtype, tiles)
        else:
            pieces = self._kept(rows, end, size, q.dtype)
        results = [_attend(q[:, piece.rows], keys, values, piece, scale) for piece in pieces]
        return results[0] if len(results) == 1 else torch.cat(results, 1)

    def _tiles(
        self, layer: int, q: torch.Tensor, keys: torch.Tensor, rows: torch.Tensor, size: int | None, scale: float | None
    ) -> Tiles | None:
        """The plan's sparse choice. It weighs by 1/sqrt(D): a model's own scale is put into the queries."""
        if not self.plan.sparse or (size and size < len(self.kv)):
            return None
        own = 1.0 if scale is None else scale * q.shape[-1] ** 0.5
        asked = q if abs(own - 1) < 1e-6 else q * own
        return self.plan.sparse(asked, keys, rows, Site(layer, len(self.kv)))

    def _write(self, cached: torch.Tensor, fresh: torch.Tensor) -> None:
        if self._whole:
            _copy(cached[:, self._first : self._end], fresh)
        else:
            cached.index_copy_(1, self.rows.to(cached.device), fresh.to(cached.dtype))

    def _kept(self, rows: torch.Tensor, end: int, size: int | None, dtype: torch.dtype) -> Iterable[Piece]:
        size = size if size and size < end else None
        key = (size, rows.device)
        if key not in self._pieces:
            pieces = self._plain(end, size) or self._masked(rows, end, size, dtype)
            if len(rows) * end > MASK_ELEMENTS:
                return pieces  # made and dropped one by one, in every layer
            self._pieces[key] = list(pieces)
        return self._pieces[key]

    def _plain(self, end: int, size: int | None) -> list[Piece]:
        """Causal attention that needs no mask at all: a prompt from its start, or one row."""
        if self.plan.sees is not causal:
            return []
        if len(self.rows) == 1:
            return [Piece(slice(None), slice(end - size if size else 0, end))]
        if self._whole and not self._first and size is None:
            return [Piece(slice(None), slice(0, end), is_causal=True)]
        return []

    def _masked(
        self, rows: torch.Tensor, end: int, size: int | None, dtype: torch.dtype, tiles: Tiles | None = None
    ) -> Iterator[Piece]:
        step = max(1, MASK_ELEMENTS // (end * (1 if tiles is None else len(tiles.kept))))
        for at in range(0, len(rows), step):
            part = slice(at, min(at + step, len(rows)))
            cols = torch.arange(end, device=rows.device)
            seen = visible(self.plan.sees, rows[part], cols)
            if size:
                seen = seen & visible(window(size), rows[part], cols)
            if tiles is not None:
                seen = seen & tiles.visible(part.stop - at, end, at)
            yield _piece(part, seen, dtype)


def _piece(rows: slice, seen: torch.Tensor, dtype: torch.dtype) -> Piece:
    """Cut to the columns that some row sees: what nobody sees is not read, whatever it holds."""
    by_row, flat = seen.any(-1), seen.flatten(0, -2)
    used = flat.any(0).nonzero()[:, 0]
    if not len(used):
        used = torch.zeros(1, dtype=torch.long, device=seen.device)
    first, end = int(used[0]), int(used[-1]) + 1
    cols: slice | torch.Tensor = slice(first, end) if end - first == len(used) else used
    seen = seen[..., cols]
    blind = None if bool(by_row.all()) else ~by_row
    if bool(seen.all()):
        return Piece(rows, cols)
    bias = torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, float("-inf"))
    if blind is not None:
        bias = bias.masked_fill(blind[..., None], 0)
    return Piece(rows, cols, bias, blind=blind)


def _copy(target: torch.Tensor, source: torch.Tensor) -> None:
    """[H, R, D] each. On a GPU 8 bytes go at a time: torch copies rows that lie apart number by number."""
    per = 8 // target.element_size()
    strides = (*target.stride()[:2], *source.stride()[:2], target.storage_offset(), source.storage_offset())
    packed = target.shape[-1] % per == 0 and target.stride(-1) == source.stride(-1) == 1
    if target.is_cuda and target.dtype == source.dtype and packed and not any(s % per for s in strides):
        target.view(torch.int64).copy_(source.view(torch.int64))
    else:
        target.copy_(source)


def _attend(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, piece: Piece, scale: float | None
) -> torch.Tensor:
    """q [Hq, r, D] over the columns of a piece -> [Hq, r, D]. The heads of a GQA group share keys without copies."""
    k, v = keys[:, piece.cols], values[:, piece.cols]
    heads, count, kv_heads = q.shape[0], q.shape[1], k.shape[0]
    group = heads // kv_heads
    if piece.bias is None and not piece.is_causal:  # every row sees every column: the group's rows are one long query
        out = scaled_dot_product_attention(q.reshape(1, kv_heads, group * count, -1), k[None], v[None], scale=scale)
        return out.reshape(heads, count, -1)
    bias = piece.bias
    if bias is not None and bias.ndim == 3:
        bias = bias.unflatten(0, (kv_heads, group))
    q = q.unflatten(0, (kv_heads, group))
    k, v = (x[:, None].expand(-1, group, -1, -1) for x in (k, v))  # no copy: the group axis has stride 0
    with _kernels(q, bias):
        out = scaled_dot_product_attention(q, k, v, bias, is_causal=piece.is_causal, scale=scale).flatten(0, 1)
    return out if piece.blind is None else out.masked_fill(piece.blind[..., None], 0)


def _kernels(q: torch.Tensor, bias: torch.Tensor | None) -> AbstractContextManager[None]:
    """A mask for each head, on a GPU, is left to torch's own products: the logits are no more than the mask, which is
    there already. By torch's own choice such a call took 12 ms (H200, torch 2.11, ever new shapes), perhaps because
    cuDNN plans each shape."""
    if bias is None or bias.ndim != 4 or not q.is_cuda:
        return nullcontext()
    return sdpa_kernel([SDPBackend.MATH])  # type: ignore[no-any-return]


# No mask function is registered with it: transformers then builds none, and does not look at the positions for one,
# which would wait for the device in every forward pass. A request's plan says who sees whom.
AttentionInterface.register(NAME, attend)
