"""Fused decoder layers of known model types, for a `Runner` and for packed requests on a GPU.

In each layer q, k and v are one GEMM, and gate and up are one. Add + RMSNorm, RoPE + cache write, and SiLU + multiply
are one kernel each. The last layer computes only the tokens that get logits. Weights are not copied: weights with the
same input are moved into one tensor, and the model's parameters become views of it. So memory does not grow, and
`state_dict`, adapters merged later and the model's own forward pass stay valid.

`layers_of` returns the reason if a model has no fused layers; its own modules then run.

`fused` fuses decoder layers by torch.compile instead: norms, rotary embeddings and activations become one kernel each.
Layers share their compilations. Attention is not compiled. The model is restored after the `with` block.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from workbench.core.errors import BadInput
from workbench.engine.attention_backends.choice import kernel, on_gpu
from workbench.engine.layers.between_attentions import KEPT, MOST, BetweenAttentions, Linear
from workbench.engine.layers.float8_products import Float8Products, products_of
from workbench.engine.layers.gemm_dispatch import GemmTable
from workbench.engine.layers.module_watch import ModuleWatch
from workbench.models import float8
from workbench.models.spec import attach
from workbench.models.transformers_attention import NAME, PackedRequest, attend, registered

SHAPES = 64  # maximum number of row counts to compile for


@contextmanager
def fused(model: PreTrainedModel, backend: str | Callable[..., Any] = "inductor") -> Iterator[PreTrainedModel]:
    """Compile the model's layers within the block: once per number of rows, which takes seconds.

    A CUDA graph captured within the block stays fused.
    """
    layers = model.get_decoder().layers
    AttentionInterface.register(NAME, torch.compiler.disable(attend))
    try:
        for layer in layers:
            layer.compile(backend=backend, dynamic=False)
        with import_module("torch._dynamo").config.patch(recompile_limit=SHAPES):
            yield model
    finally:
        for layer in layers:
            layer._compiled_call_impl = None
        AttentionInterface.register(NAME, attend)


KNOWN = ("llama", "mistral", "qwen2", "qwen3")  # model types with Llama's layers, with or without QK norm


@dataclass(frozen=True, eq=False)
class FusedLayer:
    """The weights of one layer; weights with the same input are concatenated."""

    qkv: Linear
    o: Linear
    gate_up: Linear
    down: Linear
    before_attention: Tensor
    before_mlp: Tensor
    norms: tuple[Tensor, Tensor] | None  #: QK norm (Qwen3)
    eps: float
    scale: float


class FusedLayers:
    """The fused layers of a model.

    kernels         use the Triton kernels; else their torch references
    products        GEMM implementation for each shape
    why_uncaptured  why repeated passes run without graphs; "" if they do not
    """

    def __init__(self, model: PreTrainedModel, kernels: bool, products: GemmTable | None = None):
        self.kernels, self.products = kernels, products or GemmTable()
        self.decoder: Any = model.get_decoder()
        self.head: Any = model.get_output_embeddings()
        self.layers = [_fused(layer) for layer in self.decoder.layers]
        self._add_rms_norm, self._silu_and_mul, self._rope_and_cache = (
            getattr(kernel(name), "launch" if kernels else "reference")
            for name in ("add_rms_norm", "silu_and_mul", "rope_and_cache")
        )
        self.count, self.qkv, self.o = len(self.layers), self.layers[0].qkv, self.layers[0].o
        self._weights = [w for x in self.layers for w, _ in (x.qkv, x.o, x.gate_up, x.down)]
        self._parameters = [m.weight for x in self.decoder.layers for group in _groups(x) for m in group]
        self.why_uncaptured = ""
        self._graphs: dict[int, BetweenAttentions | None] = {}  # by number of rows; None: run once, or not captured
        self._turn = Lock()
        self.follow()

    @property
    def stale(self) -> bool:
        """Whether a parameter was replaced, so these weights are no longer the model's."""
        return any(
            mine.qkv[0].data_ptr() != theirs.self_attn.q_proj.weight.data_ptr()
            or mine.gate_up[0].data_ptr() != theirs.mlp.gate_proj.weight.data_ptr()
            or mine.o[0].data_ptr() != theirs.self_attn.o_proj.weight.data_ptr()
            for mine, theirs in zip(self.layers, self.decoder.layers, strict=True)
        )

    def follow(self) -> None:
        """Update copies of weights that were written since the last pass."""
        self.products.follow(self._parameters, self._weights)

    def prepare(self, rows: int, requests: int) -> None:
        """Measure the fastest GEMMs once for `rows` rows, `requests` of which get logits."""
        if not self.kernels:
            return
        for name in ("qkv", "o", "gate_up", "down"):
            found = [getattr(layer, name) for layer in self.layers]
            if all(bias is None for _, bias in found):
                weights = [weight for weight, _ in found]
                gated = name == "gate_up"
                self.products.prepare(rows, weights, parts=not gated, gate=self._silu_and_mul if gated else None)
        if self.head.bias is None:
            self.products.prepare(requests, [self.head.weight])

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        slots: Tensor,
        pools: Sequence[tuple[Tensor, Tensor]],
        attend_own: Callable[[int, Tensor, float, bool], Tensor],
        logit_rows: Tensor | None,
    ) -> Tensor:
        """Compute logits [W, V] of the rows `logit_rows` [W] (None: all R).

        `ids`, `positions` and `slots` are [R]; `pools` are keys and values of every layer; `attend_own(layer,
        q [R, Hq, D], scale, last)` returns [R, Hq · D], in the last layer only for `logit_rows`.
        """

        def attention(number: int, qkv: Tensor, cos: Tensor, sin: Tensor, last: bool) -> Tensor:
            layer = self.layers[number]
            q = self._rope_and_cache(qkv, cos, sin, slots, *pools[number], layer.norms, layer.eps)
            return attend_own(number, q, layer.scale, last)

        return self._forward(ids, positions, attention, logit_rows)

    def forward_packed(
        self,
        ids: Tensor,
        positions: Tensor,
        requests: Sequence[PackedRequest],
        logit_rows: Tensor | None,
        repeated: bool = False,
    ) -> Tensor:
        """Compute logits [W, V] of the tokens `logit_rows` [W] of packed requests, like the model's own forward pass.

        `repeated`: passes with the same number of tokens will follow; from the second on, the work between attentions
        is replayed as CUDA graphs. Raises StopForward if no request needs a further layer.
        """
        only = requests[0] if len(requests) == 1 else None
        attend, place_of = registered(), getattr(only, "place", None)
        slots = getattr(only, "slots", None) if place_of else None
        if slots is None:
            slots = torch.arange(len(ids), dtype=torch.int32, device=ids.device)

        def attention(number: int, qkv: Tensor, cos: Tensor, sin: Tensor, last: bool) -> Tensor:
            layer, module = self.layers[number], self.decoder.layers[number].self_attn
            heads, width = len(layer.qkv[0]) // module.head_dim, module.head_dim
            heads = (heads - len(layer.o[0][0]) // width) // 2
            place = place_of(number) if place_of else None  # in the cache: nothing is copied
            k, v = cos.new_empty(2, heads, len(ids), width) if place is None else place
            q = self._rope_and_cache(qkv, cos, sin, slots, k, v, layer.norms, layer.eps)
            out, _ = attend(
                module, q.transpose(0, 1)[None], k[None], v[None], None, requests=requests, scaling=layer.scale
            )
            out = out[0].flatten(1)
            return out[logit_rows] if last else out

        with self._captured(len(ids)) if repeated else nullcontext() as graphs:
            return self._forward(ids, positions, attention, logit_rows, graphs)

    @contextmanager
    def _captured(self, rows: int) -> Iterator[BetweenAttentions | None]:
        """Yield the graphs for a number of rows; None in the first pass (warm-up) and while another pass uses them."""
        if rows > MOST or self.count < 2 or not self._turn.acquire(blocking=False):
            yield None
            return
        try:
            warm = rows in self._graphs
            graphs = self._graphs.pop(rows, None)
            if warm and graphs is None and not self.why_uncaptured:
                try:
                    graphs = BetweenAttentions(self, rows)
                except RuntimeError as problem:  # out of memory, or a library synchronizes with the device
                    self.why_uncaptured = str(problem)
            self._graphs[rows] = graphs
            for old in list(self._graphs)[:-KEPT]:
                del self._graphs[old]
            with graphs.in_stream_order() if graphs else nullcontext():
                yield graphs
        finally:
            self._turn.release()

    def next_qkv(self, number: int, x: Tensor, residual: Tensor, out: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Compute queries, keys and values of the next layer from x [R, C], the projected attention of layer `number`.

        Returns (residual, qkv), the latter in `out` if given.
        """
        layer, following = self.layers[number], self.layers[number + 1]
        residual, x = self._mlp(layer, x, residual)
        residual, x = self._add_rms_norm(x, following.before_attention, following.eps, residual)
        if out is None:
            return residual, self.products(x, *following.qkv, parts=True)
        return residual, self.products.matmul_into(out, x, *following.qkv)

    def _forward(
        self,
        ids: Tensor,
        positions: Tensor,
        attention: Callable[[int, Tensor, Tensor, Tensor, bool], Tensor],
        logit_rows: Tensor | None,
        graphs: BetweenAttentions | None = None,
    ) -> Tensor:
        product, x = self.products, self.decoder.embed_tokens(ids)
        cos, sin = (part[0] for part in self.decoder.rotary_emb(x[None], positions[None]))
        layer = self.layers[0]
        residual, x = self._add_rms_norm(x, layer.before_attention, layer.eps)
        qkv = product(x, *layer.qkv, parts=True)
        for number, layer in enumerate(self.layers[:-1]):
            x = attention(number, qkv, cos, sin, False)
            if graphs is None:
                residual, qkv = self.next_qkv(number, product(x, *layer.o, parts=True), residual)
            else:
                residual, qkv = graphs.next_qkv(number, x, residual, layer.o)
        layer, few = self.layers[-1], logit_rows is not None
        x = product(attention(self.count - 1, qkv, cos, sin, few), *layer.o, parts=True)
        residual, x = self._mlp(layer, x, residual[logit_rows] if few else residual)
        norm = self.decoder.norm
        _, x = self._add_rms_norm(x, norm.weight, norm.variance_epsilon, residual)
        return product(x, self.head.weight, self.head.bias)

    def _mlp(self, layer: FusedLayer, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """Add projected attention outputs to the residual and apply the MLP -> (residual, MLP output)."""
        residual, x = self._add_rms_norm(x, layer.before_mlp, layer.eps, residual)
        x = self.products.gated_matmul(x, *layer.gate_up, self._silu_and_mul)
        return residual, self.products(x, *layer.down, parts=True)


_Known = tuple[FusedLayers, ModuleWatch]
_KNOWN: WeakKeyDictionary[PreTrainedModel, _Known] = WeakKeyDictionary()  # entries must not refer to the model


def packed_layers(model: PreTrainedModel) -> FusedLayers | None:
    """Return the fused layers for packed requests of this model on a GPU; None if its own modules run.

    Raises BadInput if its own modules would run although float8 products were requested.
    """
    if not on_gpu(model.device) or attach(model).window is not None or model.training:
        _check_own_layers(model, "it is in training, has a sliding window or is not on a GPU")
        return None
    known = _KNOWN.get(model)
    float8_now = known is not None and isinstance(known[0].products, Float8Products)
    if known is None or known[0].stale or known[1].changed or float8_now != float8.is_float8(model):
        _KNOWN.pop(model, None)
        watch = ModuleWatch(model)
        if (reason := reason_against(model)) or watch.changed:
            _check_own_layers(model, reason or "one of its modules is hooked or replaced")
            return None
        known = _KNOWN[model] = FusedLayers(model, True, products_of(model)), watch
    known[0].follow()
    return known[0]


def _check_own_layers(model: PreTrainedModel, reason: str) -> None:
    """Raise BadInput for a float8 model: its own layers multiply in the model's dtype."""
    if float8.is_float8(model):
        raise BadInput(f"this model was loaded as {float8.NAME}, but its products cannot run in float8: {reason}")


def layers_of(model: PreTrainedModel, kernels: bool, products: GemmTable | None = None) -> FusedLayers | str:
    """Return the fused layers of a model, or the reason why it has none.

    Weights with the same input are moved into one tensor, once.
    """
    return reason_against(model) or FusedLayers(model, kernels, products)


def reason_against(model: PreTrainedModel) -> str:
    """Return why a model's layers cannot be fused; "" if they can. The model is not changed."""
    decoder: Any = model.get_decoder()
    kind = decoder.config.model_type
    if kind not in KNOWN:
        return f"its model type is {kind}: only layers of {', '.join(KNOWN)} are known"
    head: Any = model.get_output_embeddings()
    if type(head) is not nn.Linear or type(decoder.embed_tokens) is not nn.Embedding:
        return "its embeddings are not plain"
    if getattr(decoder.config, "hidden_act", "") != "silu":
        return f"its activation is {decoder.config.hidden_act!r}, not 'silu'"
    if model.training:
        return "it is being trained"
    return next((reason for layer in decoder.layers if (reason := _reason_against_layer(layer))), "")


def _reason_against_layer(layer: Any) -> str:
    linears = [module for group in _groups(layer) for module in group]
    for module in linears:
        if type(module) is not nn.Linear:
            return f"a projection is {type(module).__name__}, not a plain Linear"
    if len({(x.weight.dtype, x.weight.device) for x in linears}) > 1:
        return "projections of a layer are on different devices, or differ in dtype"
    if any(len({x.bias is None for x in group}) > 1 for group in _groups(layer)):
        return "some projections of a layer have a bias, others none"
    for module in layer.modules():
        if module._forward_hooks or module._forward_pre_hooks or "_hf_hook" in vars(module):
            return "one of its modules has a hook"
        if getattr(module, "_compiled_call_impl", None) is not None:
            return "its layers are compiled"
        if "forward" in vars(module):
            return f"the forward pass of one of its modules, a {type(module).__name__}, is replaced"
    return ""


def _groups(layer: Any) -> tuple[list[nn.Linear], ...]:
    """Return the projections of a layer, grouped by common input."""
    a, m = layer.self_attn, layer.mlp
    return [a.q_proj, a.k_proj, a.v_proj], [a.o_proj], [m.gate_proj, m.up_proj], [m.down_proj]


def _fused(layer: Any) -> FusedLayer:
    a, norm = layer.self_attn, layer.input_layernorm
    norms = (a.q_norm.weight, a.k_norm.weight) if hasattr(a, "q_norm") else None
    qkv, o, gate_up, down = (_joined(group) for group in _groups(layer))
    after = layer.post_attention_layernorm
    return FusedLayer(qkv, o, gate_up, down, norm.weight, after.weight, norms, norm.variance_epsilon, a.scaling)


def _joined(linears: Sequence[nn.Linear]) -> Linear:
    weight = side_by_side([x.weight for x in linears])
    biases = [x.bias for x in linears if x.bias is not None]
    return weight, side_by_side(biases) if biases else None


@torch.no_grad()
def side_by_side(parameters: Sequence[Tensor]) -> Tensor:
    """Move parameters [n_i, …] into one tensor [sum of n_i, …], make them views of it, and return it.

    Nothing is moved if they are already.
    """
    first = parameters[0].data
    if len(parameters) == 1:
        return first
    heights = [len(x) for x in parameters]
    ends = torch.tensor(heights).cumsum(0).tolist()
    row = first.stride(0) * first.element_size()
    at = [first.data_ptr() + (end - height) * row for end, height in zip(ends, heights, strict=True)]
    same = {x.untyped_storage().data_ptr() for x in parameters} == {first.untyped_storage().data_ptr()}
    if same and [x.data_ptr() for x in parameters] == at and all(x.is_contiguous() for x in parameters):
        return first.as_strided((ends[-1], *first.shape[1:]), first.stride())
    whole = torch.cat([x.data for x in parameters])
    for x, part in zip(parameters, whole.split(heights), strict=True):
        x.data = part
    return whole
