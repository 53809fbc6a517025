"""The attention function that transformers models call: passes each request of a packed forward pass its query tokens.

`attend` is registered as attention implementation "workbench". The keyword argument `requests` of a forward pass lists
one or more requests, which are packed along the sequence axis without padding ([1, sum of R] rows). Each request
computes its own attention (`PackedRequest`).
"""

from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor
from transformers import AttentionInterface

from workbench.core.errors import BadInput
from workbench.models.families import unsupported

NAME = "workbench"
# arguments of a decoder layer that reach its attention function and do not change its result
PASSED_ON = frozenset(
    "position_ids use_cache output_attentions output_hidden_states output_router_logits cache_position "
    "position_embeddings return_dict num_items_in_batch".split()
)


def cache_argument(model: Any, cache: Any) -> dict[str, Any]:
    """Return the keyword argument for the cache in a stock model's forward, as {name: cache}."""
    known = signature(type(model).forward).parameters
    return {"cache" if "cache" in known else "past_key_values": cache}


class StopForward(Exception):
    """Raised within a forward pass to end it early, when the requested layers are computed."""


class LayerInput(NamedTuple):
    """Input of one layer's attention for one request."""

    layer: int
    q: Tensor  #: [Hq, R, D]
    k: Tensor  #: [H, R, D], fresh keys of the rows
    v: Tensor  #: [H, R, D]
    window: int | None  #: sliding window of the layer, in tokens
    scale: float | None  #: factor of the logits; None: 1/sqrt(D)
    last: bool  #: last computed layer of the request: the output is not needed


class PackedRequest(Protocol):
    """One request of a packed forward pass."""

    rows: Tensor  #: [R] positions
    num_layers: int | None  #: stop after this many layers

    def attend(self, x: LayerInput) -> Tensor | None:
        """Return the attention output [Hq, R, D] of the rows; None if it is not needed."""


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    *,
    requests: Sequence[PackedRequest] = (),
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    is_causal: bool | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Compute attention per request: [1, H, sum of R, D] -> [1, sum of R, Hq, D], in transformers' interface."""
    if not requests:
        raise BadInput(
            f"attention {NAME!r} needs a plan: call workbench.prefill, "
            "or model.set_attn_implementation('sdpa') for the stock model"
        )
    refuse(module, attention_mask, dropout, {**others, "is_causal": False if is_causal is False else None})
    layer, depths = module.layer_idx, [request.num_layers for request in requests]
    stop = None if None in depths else max(depth for depth in depths if depth)
    parts: Any = ((x[0],) for x in (query, key, value))
    if len(requests) > 1:
        lengths = [len(request.rows) for request in requests]
        parts = (x[0].split(lengths, 1) for x in (query, key, value))
    outputs = []
    for request, q, k, v in zip(requests, *parts, strict=True):
        ended = request.num_layers is not None and layer >= request.num_layers
        last = request.num_layers == layer + 1
        out = None if ended else request.attend(LayerInput(layer, q, k, v, sliding_window, scaling, last))
        outputs.append(v.new_zeros(q.shape[0], q.shape[1], v.shape[-1]) if out is None else out)
    if stop == layer + 1:
        raise StopForward
    packed = outputs[0] if len(outputs) == 1 else torch.cat(outputs, 1)
    return packed.transpose(0, 1)[None].contiguous(), None


def refuse(module: Any, mask: Any, dropout: float, others: dict[str, Any]) -> None:
    """Raise BadInput for arguments that `attend` does not support: a foreign mask, dropout, unknown arguments."""
    if mask is not None:
        raise BadInput("an attention mask was passed to the model: give the rule to Plan(sees=...) instead")
    if dropout:
        raise BadInput(f"attention dropout {dropout} is on: call model.eval() first")
    for name, value in others.items():
        if value is not None and name not in PASSED_ON:
            raise unsupported(module.config, f"its attention passes {name!r}, which is not implemented")


def registered() -> Callable[..., tuple[Tensor, None]]:
    """Return the registered attention function of the workbench: `attend`, or a wrapper that times it."""
    return cast(Callable[..., tuple[Tensor, None]], AttentionInterface()[NAME])


# No mask function is registered, so transformers builds no mask. It would inspect positions for it, and synchronize
# with the device in every forward pass. The mask rule is in a request's plan.
AttentionInterface.register(NAME, attend)
