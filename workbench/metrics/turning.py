"""One key of a model as rotating vectors: as cached, and as the model itself computes it further on."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from transformers import PreTrainedModel

from workbench.core.blocks import Block
from workbench.core.errors import BadInput
from workbench.core.plan import Plan
from workbench.engine.forward import empty, encode, prefill
from workbench.engine.support import attach


@dataclass(frozen=True)
class Turning:
    """The chosen channel pairs of one key, `start` tokens into its block."""

    pairs: tuple[int, ...]  # numbers of the channel pairs [P]
    inv_freq: np.ndarray  # [P] radians a token
    cached: np.ndarray  # [P, 2] encoded with its block at position 0
    distances: tuple[int, ...]  # [N] tokens
    moved: np.ndarray  # [N, P, 2] computed by the model with the block at each distance


def turning(
    model: PreTrainedModel, block: Block, token: int, layer: int, head: int, distances: Sequence[int], count: int = 6
) -> Turning:
    """Key of token number `token` of `block` in one layer and KV head; `count` pairs, from the fastest to the
    slowest."""
    spec = attach(model)
    heads = spec.shapes[layer % spec.layers][0]
    if not -spec.layers <= layer < spec.layers:
        raise BadInput(f"layer is {layer}: the model has layers 0 to {spec.layers - 1}")
    if not 0 <= head < heads:
        raise BadInput(f"head is {head}: the model has KV heads 0 to {heads - 1}")
    if not 0 <= token < len(block):
        raise BadInput(f"token is {token}: the block has tokens 0 to {len(block) - 1}")
    layer %= spec.layers
    table = spec.inv_freq[layer].float().cpu().numpy()
    fits = [d for d in distances if not spec.context or d + len(block) <= spec.context]
    pairs = tuple(sorted({round(i) for i in np.linspace(0, len(table) - 1, min(count, len(table)))}))
    pick = lambda key: _pairs(key, len(table), spec.pairing)[list(pairs)]  # noqa: E731
    cached = pick(encode(model, block).keys[layer][head, token])
    moved = np.stack([pick(_key(model, block, d, layer, head, token)) for d in fits])
    return Turning(pairs, table[list(pairs)], cached, tuple(fits), moved)


def _key(model: PreTrainedModel, block: Block, distance: int, layer: int, head: int, token: int) -> torch.Tensor:
    """[D] of a block computed at `distance`, where it sees itself only."""
    tokens = torch.tensor([block.tokens[0]] * distance + list(block.tokens))
    rows = torch.arange(distance, len(tokens))
    kv = empty(model, len(tokens))
    prefill(model, tokens, Plan(rows, sees=lambda row, col: (col <= row) & (col >= distance), num_layers=layer + 1), kv)
    return kv.keys[layer][head, distance + token]


def _pairs(key: torch.Tensor, half: int, pairing: str) -> np.ndarray:
    """[R/2, 2] of a key [D]."""
    turned = key[: 2 * half].float().cpu().numpy()
    return np.stack(np.split(turned, 2), -1) if pairing == "neox" else turned.reshape(half, 2)
