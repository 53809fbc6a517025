"""Prefill: compute the tokens that a plan lists, for one request or for many packed into one forward pass.

On a CPU, models of known families run without calling their modules (`CpuLayers`): for a question over cached blocks,
module calls, copies and masks would take a large part of the time. The last layer computes only the tokens that get
logits. Weights are read from the model in every pass. A model with hooks or adapters, or in training, runs its own
modules.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear, silu
from transformers import PreTrainedModel

from workbench.core.errors import BadInput
from workbench.core.kv import KV
from workbench.core.masks import causal
from workbench.core.plan import Plan
from workbench.core.utils import annotations
from workbench.core.utils.wide_copies import copy_to_device
from workbench.engine.assembly import empty
from workbench.engine.attention_backends import choice as backends
from workbench.engine.attention_backends.attention import PlannedRequest
from workbench.engine.attention_backends.attention_problem import AttentionProblem
from workbench.engine.layers.fused_layers import packed_layers, reason_against
from workbench.engine.layers.module_watch import ModuleWatch
from workbench.models.spec import ModelSpec, attach, spec_for
from workbench.models.transformers_attention import PackedRequest, StopForward, registered

Wait = Callable[[int], None]  # (layer): returns once its cached keys and values are loaded


@dataclass(frozen=True)
class PrefillRequest:
    """One request of a batch: `tokens` [T] of the whole prompt, its plan, and the KV to read and write."""

    tokens: Tensor
    plan: Plan
    kv: KV


@dataclass(frozen=True)
class PrefillOutput:
    """Result of a prefill.

    logits    [R, V] of the computed tokens, or of the last `logits_to_keep`; None if the plan stops early
    queries   [Hq, R, D] of the layers in `plan.return_queries`
    backends  name of the backend of every layer (`workbench.engine.attention_backends.choice`)
    """

    logits: Tensor | None
    queries: dict[int, Tensor] = field(default_factory=dict)
    backends: dict[int, str] = field(default_factory=dict)


def all_rows(model: PreTrainedModel, tokens: Tensor, reserve: int = 0, **plan: Any) -> PrefillRequest:
    """Return a request to compute all tokens of a prompt [T] into a new KV; `plan`: further fields of `Plan`."""
    return PrefillRequest(tokens, Plan(torch.arange(len(tokens)), **plan), empty(model, len(tokens), reserve))


def prefill(model: PreTrainedModel, tokens: Tensor, plan: Plan, kv: KV, logits_to_keep: int = 0) -> PrefillOutput:
    """Compute the tokens `plan.rows` of the prompt `tokens` [T]: write their KV to `kv`, read that of the others.

    `logits_to_keep` is how many of the last computed tokens get logits, 0 for all. Raises BadInput, before any work,
    for arguments that do not fit the model or each other.
    """
    return prefill_many(model, [PrefillRequest(tokens, plan, kv)], logits_to_keep)[0]


def prefill_many(
    model: PreTrainedModel,
    requests: Sequence[PrefillRequest],
    logits_to_keep: int = 0,
    waits: Sequence[Wait | None] = (),
    repeated: bool = False,
) -> list[PrefillOutput]:
    """Prefill requests of different lengths, caches and plans in one forward pass, packed without padding.

    `waits[i](layer)` is called before request i reads its cached keys and values of a layer, which may be loading.
    `repeated`: passes of the same size will follow; on a GPU they are captured as CUDA graphs if possible.
    """
    annotations.check("requests", requests, Sequence[PrefillRequest])
    spec = spec_for(model, (request.tokens for request in requests), (request.kv for request in requests))
    if len({id(request.kv) for request in requests}) < len(requests):
        raise BadInput("two requests share one KV: each request writes to its own (KV.clone)")
    for request in requests:
        _check(spec, request)
    rows = [request.tokens[request.plan.rows.to(request.tokens.device)] for request in requests]
    parts = [(ids, r.plan, r.kv) for ids, r in zip(rows, requests, strict=True)]
    return run(model, parts, logits_to_keep, waits, repeated)


@torch.no_grad()
def run(
    model: PreTrainedModel,
    rows: Sequence[tuple[Tensor, Plan, KV]],
    logits_to_keep: int = 0,
    waits: Sequence[Wait | None] = (),
    repeated: bool = False,
) -> list[PrefillOutput]:
    """Run the packed forward pass without checks, for (ids [R] of the tokens to compute, plan, kv) of each request."""
    if not rows:
        return []
    requests = [
        PlannedRequest(plan, kv, model.device, logits_to_keep, wait)
        for (_, plan, kv), wait in zip(rows, waits or [None] * len(rows), strict=True)
    ]
    lengths = [len(request.rows) for request in requests]
    kept = [min(logits_to_keep, n) if logits_to_keep else n for n in lengths]
    ends = torch.tensor(lengths).cumsum(0).tolist()
    last = torch.cat([torch.arange(end - n, end) for end, n in zip(ends, kept, strict=True)])
    ids = torch.cat([copy_to_device(ids, model.device) for ids, _, _ in rows])
    positions = torch.cat([request.rows for request in requests])
    logit_rows = copy_to_device(last, model.device) if sum(kept) < sum(lengths) else None
    try:
        computed = packed_logits(model, ids, positions, requests, logit_rows, repeated)
    except StopForward:
        return [PrefillOutput(None, request.queries, request.backends) for request in requests]
    return [
        PrefillOutput(None if request.num_layers else logits, request.queries, request.backends)
        for request, logits in zip(requests, computed.split(kept), strict=True)
    ]


@torch.no_grad()
def packed_logits(
    model: PreTrainedModel,
    ids: Tensor,
    positions: Tensor,
    requests: Sequence[PackedRequest],
    logit_rows: Tensor | None,
    repeated: bool = False,
) -> Tensor:
    """Compute logits [W, V] of the tokens `logit_rows` [W] (None: all) of packed requests with `ids`, `positions` [R].

    `repeated` is that of `prefill_many`. Raises StopForward if no request needs a further layer.
    """
    if (fused := packed_layers(model)) is not None:
        return fused.forward_packed(ids, positions, requests, logit_rows, repeated)
    if (layers := cpu_layers(model)) is not None:
        return layers.forward_packed(ids, positions, requests, logit_rows)
    out = model(
        input_ids=ids[None],
        position_ids=positions[None],
        use_cache=False,
        logits_to_keep=0 if logit_rows is None else logit_rows,
        requests=requests,
    )
    logits: Tensor = out.logits[0]
    return logits


def _check(spec: ModelSpec, request: PrefillRequest) -> None:
    plan, kv = request.plan, request.kv
    last = int(plan.rows[-1])
    if last >= len(request.tokens):
        raise BadInput(f"row {last} is outside a prompt of {len(request.tokens)} tokens")
    if last >= len(kv):
        raise BadInput(f"row {last} is outside a KV of {len(kv)} tokens")
    if plan.num_layers is not None and not 1 <= plan.num_layers <= spec.layers:
        raise BadInput(f"num_layers {plan.num_layers}: the model has {spec.layers} layers, it is 1 to {spec.layers}")
    layers = plan.num_layers or spec.layers
    if bad := [layer for layer in plan.return_queries if not 0 <= layer < layers]:
        raise BadInput(f"cannot return queries of layers {bad}: this plan computes layers 0 to {layers - 1}")
    for (heads, width), window in {*zip(spec.shapes, spec.windows, strict=True)} if plan.backend else ():
        tile = getattr(plan.sparse, "size", None)  # a plain function has no `size`: its tiles are checked in the layer
        shape = (len(plan.rows), last + 1, (heads, heads), width, spec.dtype, spec.device, plan.sees is causal)
        backends.check(plan.backend, AttentionProblem(*shape, bool(window and window <= last), tile=tile))


Angles = tuple[Tensor, Tensor, Tensor]  # cosines [R, D] of all rotary channels, sines [R, D/2] of each half


class CpuLayers(ModuleWatch):
    """The layers of a model as of its first pass; `changed` is whether its modules have changed since."""

    def __init__(self, model: PreTrainedModel):
        super().__init__(model)
        self.decoder: Any = model.get_decoder()
        self.head: Any = model.get_output_embeddings()

    def forward_packed(
        self, ids: Tensor, positions: Tensor, requests: Sequence[PackedRequest], logit_rows: Tensor | None
    ) -> Tensor:
        """Compute logits [W, V] of the tokens `logit_rows` [W] (None: all) of packed requests.

        Raises StopForward if no request needs a further layer.
        """
        decoder = self.decoder
        x = embedding(ids, decoder.embed_tokens.weight)
        cos, sin = (part[0] for part in decoder.rotary_emb(x[None], positions[None]))
        angles = cos, *sin.chunk(2, -1)
        layers = decoder.layers
        for number, layer in enumerate(layers):
            out = self._attention(layer, x, angles, requests)
            if logit_rows is not None and number + 1 == len(layers):
                x, out = x[logit_rows], out[logit_rows]
            x = x + _product(layer.self_attn.o_proj, out)
            x = x.add_(_mlp(layer.mlp, _normed(layer.post_attention_layernorm, x)))
        return _product(self.head, _normed(decoder.norm, x))

    def _attention(self, layer: Any, x: Tensor, angles: Angles, requests: Sequence[PackedRequest]) -> Tensor:
        """Attend with hidden states [R, C] -> [R, Hq · D]."""
        attention, rows = layer.self_attn, len(x)
        normed = _normed(layer.input_layernorm, x)
        q, k, v = (
            _product(projection, normed).view(rows, -1, attention.head_dim)
            for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        if (norm := attention._modules.get("q_norm")) is not None:
            q, k = _normed(norm, q), _normed(attention.k_norm, k)
        q, k = (_rotated(part.transpose(0, 1), *angles) for part in (q, k))
        packed = (part[None] for part in (q, k, v.transpose(0, 1)))
        out, _ = registered()(attention, *packed, None, requests=requests, scaling=attention.scaling)
        return out.view(rows, -1)


_KNOWN: WeakKeyDictionary[PreTrainedModel, CpuLayers] = WeakKeyDictionary()  # entries must not refer to the model


def cpu_layers(model: PreTrainedModel) -> CpuLayers | None:
    """Return the `CpuLayers` of a model on a CPU in fp32; None if its own modules must run."""
    if model.device.type != "cpu" or model.dtype != torch.float32 or model.training:
        return None
    known = _KNOWN.get(model)
    if known is None or known.changed:
        _KNOWN.pop(model, None)
        known = None if attach(model).window is not None or reason_against(model) else CpuLayers(model)
        if known is None or known.changed:
            return None
        _KNOWN[model] = known
    return known


def _product(projection: nn.Linear, x: Tensor) -> Tensor:
    return linear(x, projection.weight, projection.bias)


def _normed(norm: Any, x: Tensor) -> Tensor:
    """RMS-normalize rows, with half the operations of torch's `rms_norm` on a CPU."""
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    inverse = torch.addcmul(_number(norm.variance_epsilon), length, length, value=1 / x.shape[-1]).rsqrt_()
    return torch.mul(x, inverse).mul_(norm.weight)


@lru_cache(maxsize=8)
def _number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float32, device="cpu")


def _mlp(mlp: Any, x: Tensor) -> Tensor:
    return _product(mlp.down_proj, silu(_product(mlp.gate_proj, x)).mul_(_product(mlp.up_proj, x)))


def _rotated(x: Tensor, cos: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Rotate x [H, R, D] by cosines [R, D] and sines [R, D/2] -> [H, R, D], contiguous."""
    rotary, half = cos.shape[-1], first.shape[-1]
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    to = out if rotary == x.shape[-1] else out[..., :rotary]
    torch.mul(x[..., :rotary], cos, out=to)
    to[..., :half].addcmul_(x[..., half:rotary], first, value=-1)
    to[..., half:].addcmul_(x[..., :half], second)
    if rotary < x.shape[-1]:
        out[..., rotary:] = x[..., rotary:]
    return out
