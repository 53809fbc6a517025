"""Blocks encoded side by side in one forward pass: one behind the other without padding, one launch a layer."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from workbench.engine.attention import StopForward
from workbench.engine.backends import kernel

Write = Callable[[int, Tensor, Tensor], None]  # (layer, keys [H, N, D], values [H, N, D]) of all blocks


class Packed:
    """A part of a forward pass: every block stands at positions from 0 and sees itself. `write` gets keys and values.

    kernels  carry the attention out with `encode_blocks`; otherwise with its reference in torch
    """

    def __init__(self, lengths: Sequence[int], layers: int, device: torch.device, write: Write, kernels: bool):
        self.num_layers, self.max_seqlen, self.write = layers, max(lengths), write
        self.rows = torch.cat([torch.arange(n) for n in lengths]).to(device)
        self.cu_seqlens = torch.tensor((0, *lengths)).cumsum(0).int().to(device)
        module = kernel("encode_blocks")
        self.encode = module.launch if kernels else module.reference

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, size: int | None, scale: float | None, last: bool
    ) -> Tensor | None:
        """No block is longer than the sliding window `size`: that is refused before."""
        self.write(layer, k, v)
        return None if last else self.encode(q, k, v, self.cu_seqlens, self.max_seqlen, scale)


@torch.no_grad()
def encode(model: PreTrainedModel, tokens: Sequence[Tensor], layers: int, write: Write, kernels: bool) -> None:
    """One packed forward pass over runs of token ids, up to the keys and values of the last layer."""
    part = Packed([len(run) for run in tokens], layers, model.device, write, kernels)
    ids = torch.cat([run.to(model.device) for run in tokens])
    try:
        model(input_ids=ids[None], position_ids=part.rows[None], use_cache=False, logits_to_keep=1, parts=[part])
    except StopForward:
        return
