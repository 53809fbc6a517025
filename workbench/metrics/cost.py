"""FLOPs and bytes moved up to the first token, from a configuration alone.

Linear parts (projections, MLP, output head) and attention parts (scores and weighted values) are counted separately. A
multiply-add counts as two operations. Norms, activations, softmax and the rotation of keys are left out.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from workbench.core.errors import BadInput, shorten
from workbench.core.plan import Pass


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a model that determine its cost; tuples have one entry per layer, as sliding layers may differ."""

    linear: int  #: weights per token in all layers (of experts: those in use)
    head: int  #: weights of the output head
    stored: int  #: weights in memory
    query_width: tuple[int, ...]  #: query heads times head dimension
    kv_width: tuple[int, ...]  #: numbers in the keys and values of one token
    windows: tuple[int | None, ...]  #: sliding window in tokens; None: full attention

    @property
    def convention(self) -> int:
        """Parameters as papers count them for 2 · parameters · tokens: without the input embedding."""
        return self.linear + self.head


@dataclass(frozen=True)
class Cost:
    """Cost of one prefill to its first token: operations in FLOPs, traffic in bytes."""

    linear: float  #: operations in projections, MLPs and the output head
    attention: float  #: operations in scores and weighted values
    weights: float  #: bytes of weights read once
    kv_written: float  #: bytes of keys and values of computed tokens
    kv_read: float  #: bytes of keys and values attended to, once per layer
    kv_loaded: float  #: bytes of cached blocks, loaded from the store

    @property
    def flops(self) -> float:
        """Total FLOPs; a multiply-add is two."""
        return self.linear + self.attention

    @property
    def bytes(self) -> float:
        """Total bytes moved."""
        return self.weights + self.kv_written + self.kv_read + self.kv_loaded


def shape(config: PretrainedConfig) -> ModelShape:
    """Return the shape of a causal language model from its configuration. Raises BadInput for other kinds of models."""
    return shape_of(shell(config))


def shell(config: PretrainedConfig) -> PreTrainedModel:
    """Return a causal language model without weights, on the meta device. Raises BadInput for other kinds of models."""
    try:
        with torch.device("meta"):
            model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    except (ValueError, KeyError, AttributeError) as problem:
        raise BadInput(
            f"no causal language model can be built from a {type(config).__name__}: {shorten(problem)}"
        ) from None
    return model


def shape_of(model: PreTrainedModel) -> ModelShape:
    """Return the shape of a loaded model."""
    config = model.config.get_text_config()
    layers = config.num_hidden_layers
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    output = model.get_output_embeddings().weight
    used = _share_of_experts(config)
    linear = sum(
        round(weight.numel() * (used if ".experts." in name else 1.0))
        for name, weight in model.named_parameters()
        if weight.ndim > 1 and id(weight) not in tables and weight is not output
    )
    heads = config.num_attention_heads
    dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    sliding = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None) or ["sliding_attention" if sliding else "full_attention"] * layers
    windows = tuple(sliding if kind == "sliding_attention" else None for kind in kinds)
    stored = sum(weight.numel() for weight in model.parameters())
    widths = (heads * dim,) * layers, (2 * kv_heads * dim,) * layers  # of queries, of keys and values
    return ModelShape(linear, output.numel(), stored, *widths, windows)


def _share_of_experts(config: PretrainedConfig) -> float:
    """Return the share of the experts' weights that one token uses."""
    counts = (getattr(config, name, None) for name in ("num_local_experts", "num_experts", "n_routed_experts"))
    total = next(filter(None, counts), 1)
    return (getattr(config, "num_experts_per_tok", None) or total) / total


def first_token(shape: ModelShape, rows: Sequence[int] | np.ndarray, length: int, itemsize: int = 2) -> Cost:
    """Return the cost of a prefill of `length` tokens that computes the positions `rows`; the others come from a store.

    Every computed token attends to all positions up to its own (or within its layer's window). The output head is
    applied to the last one. `itemsize` is the bytes of a weight, and of a number in keys and values. `range(length)` is
    ordinary prefill; the last Q positions are Block-Attention with stored blocks. Raises BadInput for rows outside the
    prompt, or none.
    """
    positions = np.asarray(rows, dtype=np.int64)
    if positions.size == 0 or positions.min() < 0 or positions.max() >= length:
        raise BadInput(
            f"rows are {positions.size} positions of {length} tokens: positions from 0 to {length - 1} are needed"
        )
    spans = [window or length for window in shape.windows]
    pairs = {span: int(np.minimum(positions + 1, span).sum()) for span in set(spans)}  # (query, key)
    per_token = sum(shape.kv_width) * itemsize
    return Cost(
        linear=2.0 * (shape.linear * positions.size + shape.head),
        attention=4.0 * sum(width * pairs[span] for width, span in zip(shape.query_width, spans, strict=True)),
        weights=float(shape.stored * itemsize),
        kv_written=float(positions.size * per_token),
        kv_read=float(sum(w * min(length, span) for w, span in zip(shape.kv_width, spans, strict=True)) * itemsize),
        kv_loaded=float((length - positions.size) * per_token),
    )


def of_passes(shape: ModelShape, passes: Sequence[Pass], reused: int, itemsize: int = 2) -> Cost:
    """Return the cost of all passes of one request up to its first token; `reused` tokens come from the store.

    Weights are read once per `Pass.forward`. The output head is applied in the last pass. A pass of `num_layers` layers
    counts by its share of the layers, and one of a helper model by its weight.
    """
    layers = len(shape.windows)
    head = 2.0 * shape.head
    shares = [_share(part, layers) for part in passes]
    full = [first_token(shape, part.rows, part.length, itemsize) for part in passes]
    costs = list(zip(full, shares, strict=True))
    forwards = {part.forward: share for part, share in zip(passes, shares, strict=True)}
    return Cost(
        linear=sum(share * (cost.linear - head) for cost, share in costs) + head,
        attention=sum(share * cost.attention for cost, share in costs),
        weights=shape.stored * itemsize * sum(forwards.values()),
        kv_written=sum(share * cost.kv_written for cost, share in costs),
        kv_read=sum(share * cost.kv_read for cost, share in costs),
        kv_loaded=float(reused * sum(shape.kv_width) * itemsize),
    )


def rows_charged(passes: Sequence[Pass], layers: int) -> float:
    """Return the computed tokens of all passes of a request, in tokens through all `layers` of the model.

    Passes of selectors and helper models are included.
    """
    return sum(len(one.rows) * _share(one, layers) for one in passes)


def charged_share(passes: Sequence[Pass], layers: int, length: int) -> float:
    """Return the charged share of a request: `rows_charged` divided by the `length` tokens of its prompt.

    It is 1 for full attention. Preprocessing before the request is not counted.
    """
    return rows_charged(passes, layers) / length


def _share(one: Pass, layers: int) -> float:
    """Return the cost per token of a pass, relative to a token through all layers."""
    return one.weight * (one.num_layers or layers) / layers


def encoding(shape: ModelShape, lengths: Iterable[int], itemsize: int = 2) -> Cost:
    """Return the cost of encoding blocks of these lengths independently in one pass, without the output head."""
    cost = of_passes(shape, [Pass(range(length), length) for length in lengths], 0, itemsize)
    return replace(cost, linear=cost.linear - 2.0 * shape.head)


def convention(parameters: int, tokens: int) -> float:
    """Return FLOPs to first token as the Block-Attention papers count them: 2 · parameters · computed tokens."""
    return 2.0 * parameters * tokens
