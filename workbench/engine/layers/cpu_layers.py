"""Decoder layers on a CPU: the weights of a model of a known family, run without the calls around each of its modules.

A question over cached blocks is little work for each layer, and calls of modules, copies and masks of transformers
take their share of it. The last layer computes no more rows than logits are wanted of. Weights are the model's own and
read anew in every pass. A model that is hooked, adapted or trained runs as it is.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear, silu
from torch.nn.modules import module as globally
from transformers import PreTrainedModel

from workbench.engine.layers.fused_layers import reason_against
from workbench.models.spec import attach
from workbench.models.transformers_attention import PackedRequest, registered

Angles = tuple[Tensor, Tensor, Tensor]  # cosines [R, D] of all rotary channels, sines [R, D/2] of either half


class CpuLayers:
    """The layers of one model, as they were when it was first asked for; `changed` says whether they are so still."""

    def __init__(self, model: PreTrainedModel):
        self.decoder: Any = model.get_decoder()
        self.head: Any = model.get_output_embeddings()
        modules = list(model.modules())
        self._children = [(m._modules, dict(m._modules)) for m in modules if m._modules]
        self._own = [vars(m) for m in modules]
        self._hooks = [hooks for m in modules for hooks in (m._forward_hooks, m._forward_pre_hooks)]

    @property
    def changed(self) -> bool:
        """Whether a module was exchanged, hooked, compiled or given another forward pass."""
        return (
            any(now != then for now, then in self._children)
            or any(self._hooks)
            or bool(globally._global_forward_hooks or globally._global_forward_pre_hooks)
            or any("forward" in own or "_hf_hook" in own or own.get("_compiled_call_impl") for own in self._own)
        )

    def packed(
        self, ids: Tensor, positions: Tensor, requests: Sequence[PackedRequest], wanted: Tensor | None
    ) -> Tensor:
        """Compute logits [W, V] of the rows `wanted` [W] of packed requests, of all where None.

        Raises StopForward where no request needs a further layer.
        """
        decoder = self.decoder
        x = embedding(ids, decoder.embed_tokens.weight)
        cos, sin = (part[0] for part in decoder.rotary_emb(x[None], positions[None]))
        angles = cos, *sin.chunk(2, -1)
        layers = decoder.layers
        for number, layer in enumerate(layers):
            out = self._attention(layer, x, angles, requests)
            if wanted is not None and number + 1 == len(layers):
                x, out = x[wanted], out[wanted]
            x = x + _product(layer.self_attn.o_proj, out)
            x = x.add_(_mlp(layer.mlp, _normed(layer.post_attention_layernorm, x)))
        return _product(self.head, _normed(decoder.norm, x))

    def _attention(self, layer: Any, x: Tensor, angles: Angles, requests: Sequence[PackedRequest]) -> Tensor:
        """Attend with rows [R, C] -> [R, Hq · D]."""
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


_KNOWN: WeakKeyDictionary[PreTrainedModel, CpuLayers] = WeakKeyDictionary()  # they hold its parts, not itself


def cpu_layers(model: PreTrainedModel) -> CpuLayers | None:
    """Return the layers by which packed requests run on a CPU in fp32; None where the model's own are used."""
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
    """Norm rows by their root mean square, in half the operations of torch's own `rms_norm` on a CPU."""
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    inverse = torch.addcmul(_number(norm.variance_epsilon), length, length, value=1 / x.shape[-1]).rsqrt_()
    return torch.mul(x, inverse).mul_(norm.weight)


@lru_cache(maxsize=8)
def _number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float32, device="cpu")


def _mlp(mlp: Any, x: Tensor) -> Tensor:
    return _product(mlp.down_proj, silu(_product(mlp.gate_proj, x)).mul_(_product(mlp.up_proj, x)))


def _rotated(x: Tensor, cos: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Rotate x [H, R, D] by the cosines [R, D] and sines [R, D/2] of its angles -> [H, R, D], contiguous."""
    rotary, half = cos.shape[-1], first.shape[-1]
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    to = out if rotary == x.shape[-1] else out[..., :rotary]
    torch.mul(x[..., :rotary], cos, out=to)
    to[..., :half].addcmul_(x[..., half:rotary], first, value=-1)
    to[..., half:].addcmul_(x[..., :half], second)
    if rotary < x.shape[-1]:
        out[..., rotary:] = x[..., rotary:]
    return out
