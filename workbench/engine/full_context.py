"""KV of contexts under full attention in the first layers: a reference for cached blocks, or a replacement."""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from workbench.core.blocks import Prompt
from workbench.core.errors import BadInput
from workbench.core.kv import KV
from workbench.core.plan import Pass, Plan
from workbench.engine.attention_maps import layers_of
from workbench.engine.forward import PrefillRequest, prefill_many
from workbench.models.spec import spec_for


def exact(model: PreTrainedModel, prompts: Sequence[Prompt], num_layers: int) -> list[KV]:
    """Compute the KV of whole contexts under full attention in layers 0 to `num_layers` - 1, in one packed pass.

    Later layers are not computed and take no memory.
    """
    spec = spec_for(model)

    def new(length: int) -> list[Tensor]:
        shapes = [(heads, length if i < num_layers else 1, width) for i, (heads, width) in enumerate(spec.shapes)]
        zeros = (torch.zeros(shape, dtype=spec.dtype, device=spec.device) for shape in shapes)
        return [layer.expand(-1, length, -1) for layer in zeros]

    ends = [prompt.starts[-1] for prompt in prompts]
    kvs = [KV(new(end), new(end)) for end in ends]
    plans = [Plan(torch.arange(end), num_layers=num_layers) for end in ends]
    prefill_many(model, [PrefillRequest(p.tokens, plan, kv) for p, plan, kv in zip(prompts, plans, kvs, strict=True)])
    return kvs


def context_pass(model: PreTrainedModel, prompt: Prompt, num_layers: int) -> tuple[Pass]:
    """Return the pass of `exact` for one request, to count its cost. Raises BadInput if the model has fewer layers."""
    if num_layers > (count := len(layers_of(model, "all"))):
        raise BadInput(f"layer {num_layers - 1} is compared with full attention: the model has {count} layers")
    return (Pass(range(prompt.starts[-1]), prompt.starts[-1], num_layers),)


def gap(kv: KV, truth: KV, layer: int, part: str = "kv") -> Tensor:
    """Return the squared error [T of `truth`] of one layer's KV, summed over heads and channels.

    `part` is "kv" (keys and values), "k" or "v" (FusionRAG, equation 7).
    """
    pairs = {"k": (kv.keys, truth.keys), "v": (kv.values, truth.values)}
    compared = [(ours[layer][:, : len(truth)], theirs[layer]) for ours, theirs in (pairs[name] for name in part)]
    return torch.stack([(ours.float() - theirs.float()).square().sum((0, 2)) for ours, theirs in compared]).sum(0)


def write(kv: KV, truth: KV, num_layers: int) -> None:
    """Overwrite the first `num_layers` layers of `kv` with those of `truth`, for the tokens of `truth`."""
    for mine, theirs in ((kv.keys, truth.keys), (kv.values, truth.values)):
        for layer in range(num_layers):
            mine[layer][:, : len(truth)].copy_(theirs[layer])
    kv.mark_changed()
