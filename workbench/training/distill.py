"""SeerAttention's self-distillation (arXiv:2410.13276, section 3.3): train a gate on the model's own attention."""

from collections.abc import Callable, Sequence
from random import Random

import torch
from torch import Tensor
from transformers import PreTrainedModel

from workbench.core.errors import BadInput
from workbench.core.tiling.tiles import Grid, peaks
from workbench.engine.forward import all_rows, prefill_many
from workbench.methods import seer_gate
from workbench.methods.seer_gate import Gate
from workbench.models.spec import spec_for
from workbench.training.gate_config import GateConfig


def distill(
    model: PreTrainedModel,
    prompts: Sequence[Tensor],
    config: GateConfig,
    tell: Callable[[int, float], object] | None = None,
) -> tuple[Gate, list[float]]:
    """Train a gate for `model` from its attention on `prompts` (token ids [T]); return it and the loss (nats) per step.

    The model is not changed. `tell` is called with step and loss. Raises BadInput for prompts shorter than two blocks.
    """
    if not prompts or min(map(len, prompts)) <= config.block:
        raise BadInput(f"a gate of block {config.block} learns from prompts of more than {config.block} tokens")
    device = spec_for(model, prompts).device
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(config.seed)
        gate = seer_gate.new_gate(model, config.block, config.width)
    optimizer = torch.optim.AdamW(gate.parameters(), lr=config.lr, weight_decay=0.0)
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, config))
    rng, losses = Random(config.seed), []
    for step in range(config.steps):
        loss = losses_of(model, gate, rng.choices(prompts, k=config.batch)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rate.step()
        losses.append(float(loss.detach()))
        if tell:
            tell(step + 1, losses[-1])
    return gate.eval().requires_grad_(False), losses


def losses_of(model: PreTrainedModel, gate: Gate, prompts: Sequence[Tensor]) -> Tensor:
    """Return [L]: distillation loss of each layer, mean over `prompts`."""
    layers = range(len(gate.query))
    requests = [all_rows(model, p, return_queries=tuple(layers), num_layers=len(layers)) for p in prompts]
    losses = []
    for request, output in zip(requests, prefill_many(model, requests), strict=True):
        rows = request.plan.rows.to(model.device)
        grid = Grid(rows, len(rows), gate.shape.block)
        pairs = enumerate((output.queries[layer], request.kv.keys[layer]) for layer in layers)
        losses.append(torch.stack([divergence(target(q, k, grid), gate(i, q, k, grid)) for i, (q, k) in pairs]))
    return torch.stack(losses).mean(0)


@torch.no_grad()
def target(queries: Tensor, keys: Tensor, grid: Grid) -> Tensor:
    """Return a gate's target [Hq, I, J]: the largest attention within a tile, normalised over its row of tiles."""
    largest = peaks(queries, keys, grid)
    return largest / largest.sum(-1, keepdim=True)


def divergence(expected: Tensor, logits: Tensor) -> Tensor:
    """Return KL(expected ‖ softmax of logits), mean over heads and query tiles without the first quarter of them."""
    first = expected.shape[1] // 4
    expected, log_gate = expected[:, first:], logits[:, first:].log_softmax(-1)
    terms = expected * (expected.clamp(min=1e-30).log() - log_gate)
    return terms.masked_fill(expected == 0, 0.0).sum(-1).mean()


def _rate(step: int, config: GateConfig) -> float:
    if step < config.warmup:
        return (step + 1) / config.warmup
    left = (step - config.warmup) / max(1, config.steps - config.warmup)
    return 0.5 + 0.5 * float(torch.cos(torch.tensor(torch.pi * left)))
