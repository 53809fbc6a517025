"""Model properties that the engine needs, and a check that cached blocks can be moved to other positions.

Configurations that are known not to work are rejected (`families.check`). The rest is measured: one forward pass of six
rows computes three tokens, without context, at two positions each. With rotary positions, values are equal at both, and
one rotation moves the keys of every layer.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import PreTrainedModel

from workbench.core.errors import BadInput, Unsupported, format_value
from workbench.core.kv import KV, check_agreement
from workbench.core.rope import Pairing, rotate
from workbench.models.families import (
    check,
    check_modules,
    declared_window,
    decoder_config,
    family,
    inv_freqs,
    unsupported,
)
from workbench.models.transformers_attention import NAME, LayerInput


@dataclass(frozen=True)
class ModelSpec:
    """Model properties that the engine needs, from `attach`; lists have one entry per layer."""

    name: str
    dtype: torch.dtype
    device: torch.device
    shapes: list[tuple[int, int]]  #: (KV heads, head width)
    inv_freq: list[Tensor]  #: [R/2] rotary frequencies
    pairing: Pairing  #: pairing of rotary channels, "neox" or "interleaved"
    windows: list[int | None]  #: sliding window in tokens; None: full attention
    context: int | None  #: maximum number of tokens of prompt and answer; None: unlimited
    vocabulary: int  #: number of logits, V
    ids: int  #: number of token ids with an embedding, including soft tokens

    def __repr__(self) -> str:
        heads, width = self.shapes[0]
        shape = f"{self.layers} layers of {heads} × {width}"
        context = f"context {self.context:,}" if self.context else "any context"
        return f"ModelSpec({Path(self.name).name}: {shape}, {context}, {str(self.dtype)[6:]} on {self.device})"

    @property
    def layers(self) -> int:
        """Number of layers."""
        return len(self.shapes)

    @property
    def window(self) -> int | None:
        """Narrowest sliding window of the model in tokens; None if there is none."""
        return min((w for w in self.windows if w), default=None)

    def empty(self, length: int, reserve: int = 0) -> KV:
        """Allocate KV for `length` tokens, with capacity for `reserve` more."""
        return KV.zeros(self.shapes, length, reserve, dtype=self.dtype, device=self.device)

    def check_tokens(self, tokens: Tensor) -> None:
        """Raise BadInput unless `tokens` [T] (int64 or int32) are ids of this model, within its context."""
        if not isinstance(tokens, Tensor) or tokens.dtype not in (torch.int64, torch.int32):
            raise BadInput(f"tokens is {format_value(tokens)}: a tensor of token ids is needed, whole numbers")
        if not tokens.numel():
            raise BadInput("tokens is empty: a prompt has at least one token")
        if tokens.ndim != 1:
            raise BadInput(f"tokens must be one list of token ids, got a tensor of {tuple(tokens.shape)}")
        if self.context and len(tokens) > self.context:
            raise BadInput(f"a prompt of {len(tokens)} tokens is over the model's context of {self.context} tokens")
        if int(tokens.max()) >= self.ids or int(tokens.min()) < 0:
            raise BadInput(
                f"token ids {int(tokens.min())} to {int(tokens.max())} are not all in the model's vocabulary "
                f"of {self.ids}"
            )

    def check_block(self, length: int) -> None:
        """Raise BadInput for a block longer than the narrowest sliding window, which would hide its first tokens."""
        if self.window and length > self.window:
            raise BadInput(
                f"a block of {length} tokens does not fit the sliding window of {self.window} tokens of {self.name}: "
                "cut it into shorter blocks"
            )

    def check_shapes(self, kv: KV) -> None:
        """Raise BadInput for a KV whose layers, heads, width or dtype are not the model's."""
        if not isinstance(kv, KV):
            raise BadInput(f"kv is {format_value(kv)}: a KV is needed")
        check_agreement(kv.keys, kv.values)
        shapes = [(x.shape[0], x.shape[2]) for x in kv.keys]
        if shapes != self.shapes:
            raise BadInput(
                f"this KV is of another model: {len(shapes)} layers of (heads, width) {sorted(set(shapes))}, "
                f"the model has {self.layers} of {sorted(set(self.shapes))}"
            )
        if odd := {x.dtype for x in kv.tensors()} - {self.dtype}:
            raise BadInput(f"this KV is {odd.pop()}, the model computes in {self.dtype}")

    def check_cache(self, kv: KV) -> None:
        """Raise BadInput for a KV that cannot be prefilled: of another model or device, read-only, or not from 0."""
        self.check_shapes(kv)
        if odd := {(x.dtype, x.device) for x in kv.tensors()} - {(self.dtype, self.device)}:
            raise BadInput(f"this KV is {odd.pop()}, the model computes in {self.dtype} on {self.device}")
        if kv.start:
            raise BadInput(f"a KV that starts at position {kv.start} cannot be prefilled: assemble a prompt from it")
        if kv.read_only:
            raise BadInput("this KV is read-only, because a store shares it: assemble a prompt from it or clone it")


_KNOWN: WeakKeyDictionary[PreTrainedModel, ModelSpec] = WeakKeyDictionary()  # cache by model object


def attach(model: PreTrainedModel) -> ModelSpec:
    """Switch `model` to the workbench's attention and return its spec. Raises Unsupported if it cannot be used.

    The spec is measured once, and again after a change of dtype or device. To restore the stock attention, call
    `model.set_attn_implementation("sdpa")`.
    """
    if not isinstance(model, PreTrainedModel):
        raise BadInput(f"model is {format_value(model)}: a model of transformers is needed, as models.load gives it")
    known = _KNOWN.get(model)
    if known is None or (known.dtype, known.device) != (model.dtype, model.device):
        known = _KNOWN[model] = _measure(model)
    if model.config._attn_implementation != NAME:
        model.set_attn_implementation(NAME)
    return known


def spec_for(model: PreTrainedModel, prompts: Iterable[Tensor] = (), kvs: Iterable[KV] = ()) -> ModelSpec:
    """Attach `model` and return its spec. Raises BadInput for prompts (token ids [T]) or KVs that do not fit it."""
    spec = attach(model)
    for tokens in prompts:
        spec.check_tokens(tokens)
    for kv in kvs:
        spec.check_cache(kv)
    return spec


def _measure(model: PreTrainedModel) -> ModelSpec:
    check(model.config)
    check_modules(model)
    before = model.config._attn_implementation
    model.set_attn_implementation(NAME)
    try:
        if model.config._attn_implementation != NAME:
            raise unsupported(model.config, "its attention does not go through transformers' AttentionInterface")
        return _probe(model)
    except BaseException:
        model.set_attn_implementation(before)
        raise


class _Probe:
    """A request whose rows attend to themselves only; records the keys and values of every layer."""

    num_layers = None

    def __init__(self, rows: Tensor):
        self.rows = rows
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}
        self.windows: dict[int, int | None] = {}
        self.twice: set[int] = set()

    def attend(self, x: LayerInput) -> Tensor:
        if x.layer in self.keys:
            self.twice.add(x.layer)
        self.keys[x.layer], self.values[x.layer], self.windows[x.layer] = x.k, x.v, x.window
        return x.v.repeat_interleave(x.q.shape[0] // x.v.shape[0], 0)


@torch.no_grad()
def _probe(model: PreTrainedModel) -> ModelSpec:
    decoder = decoder_config(model.config)
    layers, vocabulary = decoder.num_hidden_layers, decoder.vocab_size
    context = getattr(decoder, "max_position_embeddings", None)
    far = min(1000, (context or 1001) - 1)
    tokens = torch.tensor([vocabulary // 4, vocabulary // 2, vocabulary - 1], device=model.device)
    probe = _Probe(torch.tensor([0, 0, 0, far, far, far], device=model.device))
    ids = tokens.repeat(2)[None]
    try:
        model(input_ids=ids, position_ids=probe.rows[None], use_cache=False, requests=[probe], logits_to_keep=1)
    except Unsupported:
        raise
    except (BadInput, TypeError) as error:  # the plan was lost, or a mask was passed
        raise unsupported(model.config, f"a plan does not reach its attention function unchanged ({error})") from error
    if probe.twice:
        raise unsupported(model.config, f"its layers {sorted(probe.twice)} attend more than once to the same keys")
    if sorted(probe.keys) != list(range(layers)):
        missing = sorted(set(range(layers)) - set(probe.keys))
        raise unsupported(model.config, f"its layers {missing} do not go through the registered attention function")
    spec = ModelSpec(
        model.config.name_or_path or model.config.model_type,
        model.dtype,
        model.device,
        [(probe.keys[i].shape[0], probe.keys[i].shape[-1]) for i in range(layers)],
        inv_freqs(model, layers),
        family(model).pairing,
        [probe.windows[i] for i in range(layers)],
        context,
        vocabulary,
        vocabulary + sum(getattr(model.config, "soft_tokens", ())),
    )
    for layer in range(layers):
        _check_layer(model, spec, layer, probe.keys[layer], probe.values[layer], far)
    return spec


def _check_layer(model: PreTrainedModel, spec: ModelSpec, layer: int, k: Tensor, v: Tensor, far: int) -> None:
    near, tolerance = slice(0, 3), 1e-3 if spec.dtype == torch.float32 else 0.1
    declared = declared_window(model.config, layer)
    if declared and spec.windows[layer] != declared:
        raise unsupported(
            model.config, f"the sliding window of its layer {layer} is not passed to its attention function"
        )
    if k.shape != v.shape:
        raise unsupported(model.config, f"keys and values of its layer {layer} differ in width")
    if not _close(v[:, near], v[:, 3:], tolerance):
        raise unsupported(
            model.config, f"values of its layer {layer} depend on the position, so a cached block cannot be moved"
        )
    shifted = rotate(k[:, near], far, spec.inv_freq[layer], spec.pairing)
    if not _close(shifted, k[:, 3:], tolerance):
        raise unsupported(
            model.config, f"keys of its layer {layer} do not move by one {spec.pairing} rotation of its table"
        )


def _close(a: Tensor, b: Tensor, tolerance: float) -> bool:
    scale = b.float().abs().max()
    return bool((a.float() - b.float()).abs().max() <= tolerance * scale)
