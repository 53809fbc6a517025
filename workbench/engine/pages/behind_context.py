"""Encode many blocks in one packed pass, each after its context of cached blocks in pages.

Matrix products run without padding; attention is one call per layer, with blocks padded to the longest. Contexts are
read in place and may share blocks.
"""

from collections.abc import Sequence
from contextlib import ExitStack, suppress

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from workbench.core.blocks import Block
from workbench.core.kv import KV, layered
from workbench.core.utils.wide_copies import copy_to_device, gather_tokens, index_copy
from workbench.engine.attention_backends.choice import kernel, kernel_over_pages
from workbench.engine.forward import packed_logits
from workbench.engine.pages.page_tables import batch_of
from workbench.engine.pages.paged_pool import Pool
from workbench.engine.pages.paged_prompt import Cached, PagedPrompt
from workbench.models.transformers_attention import LayerInput, StopForward


class OwnRows:
    """The own tokens of B prompts as one request of a packed pass (`PackedRequest`)."""

    def __init__(self, pool: Pool, prompts: Sequence[PagedPrompt]):
        self.pool, self.pages = pool, batch_of([prompt.table for prompt in prompts], pool.device)
        self.num_layers: int | None = len(pool.keys)
        places = [torch.from_numpy(prompt.places) for prompt in prompts]
        numbers = torch.arange(sum(map(len, places))).split([*map(len, places)])
        at = pad_sequence(places, batch_first=True, padding_value=-1)
        self.rows = copy_to_device(torch.cat(places).long(), pool.device)
        self.slots = copy_to_device(torch.from_numpy(np.concatenate([p.own for p in prompts])), pool.device)
        self.at = copy_to_device(at.int(), pool.device)
        padding = at.flatten() < 0
        packed = pad_sequence(list(numbers), batch_first=True).flatten()
        self.packed = copy_to_device(packed, pool.device) if padding.any() else None
        self.kept = copy_to_device((~padding).nonzero()[:, 0], pool.device)

    def place(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return the tensors in which keys and values of a layer are written at `slots`."""
        return self.pool.keys[layer], self.pool.values[layer]

    def attend(self, x: LayerInput) -> Tensor | None:
        """Write the new keys and values, then attend: [Hq, R, D]."""
        keys, values = self.place(x.layer)
        if x.k.data_ptr() != keys.data_ptr():  # else the layer has written them in place
            index_copy(keys, self.slots.long(), x.k)
            index_copy(values, self.slots.long(), x.v)
        if x.last:
            return None
        q = x.q if self.packed is None else x.q[:, self.packed]
        queries = q.unflatten(1, self.at.shape).transpose(0, 1)
        module = kernel(kernel_over_pages(self.at.shape, (len(q), len(keys)), self.pool.device))
        call = module.launch if self.pool.kernels else module.reference
        inv_freq = None if self.pages.shifts is None else self.pool.inv_freq[x.layer]
        out: Tensor = call(queries, keys, values, self.at, self.pages, inv_freq, self.pool.pairing, x.scale)
        out = out.transpose(0, 1).flatten(1, 2)
        return out if self.packed is None else out[:, self.kept]


@torch.no_grad()
def encode_behind(
    model: PreTrainedModel, pool: Pool, contexts: Sequence[Sequence[Cached]], blocks: Sequence[Block]
) -> list[KV]:
    """Compute the KV of each block after its context, whose blocks are rerotated to consecutive positions.

    Pages for all `blocks` are allocated during the pass; raises NoPages if too few are free.
    """
    with ExitStack() as stack:
        prompts = list[PagedPrompt]()
        for context, block in zip(contexts, blocks, strict=True):
            prompts.append(pool.open(context, len(block)) if context else pool.blank(len(block)))
            stack.callback(pool.close, prompts[-1])
        request = OwnRows(pool, prompts)
        ids = copy_to_device(torch.cat([block.ids for block in blocks]), pool.device)
        with pool.in_order():
            with suppress(StopForward):
                packed_logits(model, ids, request.rows, [request], request.rows[:0])
            parts = request.slots.long().split([*map(len, blocks)])
            return [
                KV(_taken(pool.keys, at), _taken(pool.values, at), prompt.length)
                for at, prompt in zip(parts, prompts, strict=True)
            ]


def _taken(layers: list[Tensor], at: Tensor) -> list[Tensor]:
    """Copy the tokens at slots `at` [T] of all layers -> [H, T, D] each; one call if layers are contiguous."""
    whole = layered(layers)
    return [gather_tokens(x, at) for x in layers] if whole is None else list(whole.index_select(2, at))
