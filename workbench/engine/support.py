"""Is this model one whose cached blocks can be reused exactly? Asked once per model, before any work.

The configuration names what is known not to work (`families.check`). The rest is measured: in one forward pass of six
rows, three tokens are computed alone at two positions each. Where positions are rotary, hidden states and values are
the same at both, and one rotation moves the keys of every layer.
"""

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from transformers import PreTrainedModel

from workbench.core.errors import BadInput, Unsupported
from workbench.core.rope import Pairing, rotate
from workbench.engine.attention import NAME
from workbench.models.families import (
    check,
    check_modules,
    declared_window,
    decoder_config,
    family,
    inv_freqs,
    unsupported,
)


@dataclass(frozen=True)
class ModelSpec:
    """What the engine needs to know of a model, per layer."""

    dtype: torch.dtype
    device: torch.device
    shapes: list[tuple[int, int]]  # heads and head width of keys and values
    inv_freq: list[torch.Tensor]  # [R/2]
    pairing: Pairing
    windows: list[int | None]  # sliding window, tokens
    context: int | None  # most tokens of a prompt and its answer
    vocabulary: int

    @property
    def layers(self) -> int:
        return len(self.shapes)

    @property
    def window(self) -> int | None:
        """The narrowest sliding window of the model."""
        return min((w for w in self.windows if w), default=None)


_KNOWN: WeakKeyDictionary[PreTrainedModel, ModelSpec] = WeakKeyDictionary()  # a pure memo, by model object


def prepare_model(model: PreTrainedModel) -> PreTrainedModel:
    """Switch `model` to the workbench's attention; Unsupported, in one sentence, where it cannot be used.

    Idempotent, called by every verb of the engine. `model.set_attn_implementation("sdpa")` gives the stock model back.
    """
    attach(model)
    return model


def attach(model: PreTrainedModel) -> ModelSpec:
    """Facts of a model that is prepared by this call, measured anew where it has changed its dtype or device."""
    known = _KNOWN.get(model)
    if known is None or (known.dtype, known.device) != (model.dtype, model.device):
        known = _KNOWN[model] = _measure(model)
    if model.config._attn_implementation != NAME:
        model.set_attn_implementation(NAME)
    return known


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


class _Alone:
    """A part of a forward pass whose rows each see themselves only; keeps the keys and values of every layer."""

    num_layers = None

    def __init__(self, rows: torch.Tensor):
        self.rows = rows
        self.keys: dict[int, torch.Tensor] = {}
        self.values: dict[int, torch.Tensor] = {}
        self.windows: dict[int, int | None] = {}
        self.twice: set[int] = set()

    def attend(
        self,
        layer: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        size: int | None,
        scale: float | None,
        last: bool,
    ) -> torch.Tensor:
        if layer in self.keys:
            self.twice.add(layer)
        self.keys[layer], self.values[layer], self.windows[layer] = k, v, size
        return v.repeat_interleave(q.shape[0] // v.shape[0], 0)


@torch.no_grad()
def _probe(model: PreTrainedModel) -> ModelSpec:
    decoder = decoder_config(model.config)
    layers, vocabulary = decoder.num_hidden_layers, decoder.vocab_size
    context = getattr(decoder, "max_position_embeddings", None)
    far = min(1000, (context or 1001) - 1)
    tokens = torch.tensor([vocabulary // 4, vocabulary // 2, vocabulary - 1], device=model.device)
    part = _Alone(torch.tensor([0, 0, 0, far, far, far], device=model.device))
    ids = tokens.repeat(2)[None]
    try:
        model(input_ids=ids, position_ids=part.rows[None], use_cache=False, parts=[part], logits_to_keep=1)
    except Unsupported:
        raise
    except (BadInput, TypeError) as error:  # no plan arrived, or a mask of its own did
        raise unsupported(model.config, f"a plan does not reach its attention function unchanged ({error})") from error
    if part.twice:
        raise unsupported(model.config, f"its layers {sorted(part.twice)} attend more than once to the same keys")
    if sorted(part.keys) != list(range(layers)):
        missing = sorted(set(range(layers)) - set(part.keys))
        raise unsupported(model.config, f"its layers {missing} do not go through the registered attention function")
    spec = ModelSpec(
        model.dtype,
        model.device,
        [(part.keys[i].shape[0], part.keys[i].shape[-1]) for i in range(layers)],
        inv_freqs(model, layers),
        family(model).pairing,
        [part.windows[i] for i in range(layers)],
        context,
        vocabulary,
    )
    for layer in range(layers):
        _check_layer(model, spec, layer, part.keys[layer], part.values[layer], far)
    return spec


def _check_layer(
    model: PreTrainedModel, spec: ModelSpec, layer: int, k: torch.Tensor, v: torch.Tensor, far: int
) -> None:
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
    moved = rotate(k[:, near], far, spec.inv_freq[layer], spec.pairing)
    if not _close(moved, k[:, 3:], tolerance):
        raise unsupported(
            model.config, f"keys of its layer {layer} do not move by one {spec.pairing} rotation of its table"
        )


def _close(a: torch.Tensor, b: torch.Tensor, tolerance: float) -> bool:
    scale = b.float().abs().max()
    return bool((a.float() - b.float()).abs().max() <= tolerance * scale)
