"""Encode blocks: many of different lengths in one forward pass, packed without padding."""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from workbench.core.blocks import Block
from workbench.core.errors import BadInput
from workbench.core.kv import KV
from workbench.core.plan import Plan
from workbench.core.utils import annotations
from workbench.engine.attention_backends import blocks_backends
from workbench.engine.attention_backends.choice import kernel, on_gpu
from workbench.engine.forward import packed_logits, run
from workbench.models.spec import ModelSpec, spec_for
from workbench.models.transformers_attention import LayerInput, StopForward

PACK = 8192  # maximum tokens per packed forward pass (a longer block has its own)

Write = Callable[[LayerInput], None]  # of all blocks: queries [Hq, N, D], keys [H, N, D], values [H, N, D]


@annotations.checked
def encode(model: PreTrainedModel, block: Block, after: Sequence[Block] = ()) -> KV:
    """Compute the KV of a block, independently or after the blocks `after`, which it attends to.

    Its keys are rotated for the positions that follow `after` (`KV.start`); the KV of `after` is not returned. Raises
    BadInput for tokens out of the vocabulary, and for a block longer than the context or the sliding window.
    """
    return encode_many(model, [block], [after])[0]


@annotations.checked
def encode_many(model: PreTrainedModel, blocks: Sequence[Block], after: Sequence[Sequence[Block]] = ()) -> list[KV]:
    """Compute the KV of each block as `encode` does, packed into few forward passes; block i follows `after[i]`."""
    before = [tuple(past) for past in after] or [()] * len(blocks)
    if len(before) != len(blocks):
        raise BadInput(f"`after` has {len(before)} entries for {len(blocks)} blocks: give one list of blocks for each")
    texts = [
        torch.tensor([t for b in (*past, block) for t in b.tokens]) for past, block in zip(before, blocks, strict=True)
    ]
    spec = spec_for(model, texts)
    for block in blocks:
        spec.check_block(len(block))
    prefixes = _prefixes(model, spec, before)
    begins = [len(prefixes[past]) if past in prefixes else 0 for past in before]
    encoded: list[KV] = []
    for group in packs([len(tokens) - begin for tokens, begin in zip(texts, begins, strict=True)]):
        kvs = [spec.empty(len(texts[i])) for i in group]
        for i, kv in zip(group, kvs, strict=True):
            for to, cached in zip(kv.tensors(), prefixes[before[i]].tensors() if begins[i] else (), strict=False):
                to[:, : begins[i]] = cached
        _encode(model, spec, [texts[i] for i in group], kvs, [begins[i] for i in group])
        for i, kv in zip(group, kvs, strict=True):
            length = len(blocks[i])
            encoded.append(kv if len(kv) == length else kv.slice(len(kv) - length, len(kv)))
    return encoded


def _prefixes(
    model: PreTrainedModel, spec: ModelSpec, before: Sequence[tuple[Block, ...]]
) -> dict[tuple[Block, ...], KV]:
    """Encode each prefix that several blocks share once; on a GPU none, as the kernel encodes whole texts."""
    several = [] if on_gpu(spec.device) else [past for past, count in Counter(before).items() if past and count > 1]
    texts = [torch.tensor([token for block in past for token in block.tokens]) for past in several]
    kvs = [spec.empty(len(tokens)) for tokens in texts]
    if texts:
        _encode(model, spec, texts, kvs, [0] * len(texts))
    return dict(zip(several, kvs, strict=True))


def _encode(
    model: PreTrainedModel, spec: ModelSpec, texts: Sequence[Tensor], kvs: Sequence[KV], begins: Sequence[int]
) -> None:
    """Run one packed forward pass; on a GPU, with one attention launch per layer (`kernels/encode_blocks.py`).

    `begins`: number of leading tokens of each text whose keys and values are cached already.
    """
    lengths = [len(tokens) for tokens in texts]
    if any(begins) or not _by_kernels(spec, lengths):
        plans = [Plan(torch.arange(begin, n), num_layers=spec.layers) for begin, n in zip(begins, lengths, strict=True)]
        rows = [tokens[begin:] for tokens, begin in zip(texts, begins, strict=True)]
        run(model, list(zip(rows, plans, kvs, strict=True)))
        return

    def write(x: LayerInput) -> None:
        for kv, k, v in zip(kvs, x.k.split(lengths, 1), x.v.split(lengths, 1), strict=True):
            kv.keys[x.layer].copy_(k)
            kv.values[x.layer].copy_(v)

    packed_pass(model, texts, spec.layers, write, kernels=True)()


def _by_kernels(spec: ModelSpec, lengths: Sequence[int]) -> bool:
    within_window = spec.window is None or max(lengths) <= spec.window
    return on_gpu(spec.device) and spec.dtype != torch.float32 and within_window


def watch(
    model: PreTrainedModel,
    texts: Sequence[Tensor],
    see: Callable[[int, Tensor, Tensor], None],
    layers: Sequence[int] = (),
) -> None:
    """Compute independent texts of token ids [T] in one packed forward pass, and call `see` with their keys.

    `see(layer, queries [Hq, N, D], keys [H, N, D])` gets the rotated queries and keys of all texts, for each of the
    rising `layers` (empty: all). Layers above the last of them are not computed. The KV is not returned.
    """
    spec, lengths = spec_for(model, texts), [len(tokens) for tokens in texts]
    layers = layers or range(spec.layers)
    depth = layers[-1] + 1
    if _by_kernels(spec, lengths):

        def write(x: LayerInput) -> None:
            if x.layer in layers:
                see(x.layer, x.q, x.k)

        packed_pass(model, texts, depth, write, kernels=True)()
        return
    kvs = [spec.empty(n) for n in lengths]
    plans = [Plan(torch.arange(n), return_queries=tuple(layers), num_layers=depth) for n in lengths]
    found = run(model, list(zip(texts, plans, kvs, strict=True)))
    for layer in layers:
        queries = torch.cat([one.queries[layer] for one in found], 1)
        see(layer, queries, torch.cat([kv.keys[layer] for kv in kvs], 1))


class PackedBlocks:
    """Independent blocks as one packed request, each at positions from 0; `write` receives keys and values.

    kernels  use the kernel `encode_blocks`; else its torch reference
    """

    def __init__(self, lengths: Sequence[int], layers: int, device: torch.device, write: Write, kernels: bool):
        self.num_layers: int | None = layers
        self.max_seqlen, self.write = max(lengths), write
        self.rows = torch.cat([torch.arange(n) for n in lengths]).to(device)
        self.cu_seqlens = torch.tensor((0, *lengths)).cumsum(0).int().to(device)
        self.lengths, self.kernels = tuple(lengths), kernels
        self.way = ""  # backend, chosen in the first layer

    def attend(self, x: LayerInput) -> Tensor | None:
        """Attend within each block, none of which is longer than the sliding window."""
        self.write(x)
        if x.last:
            return None
        arguments = (x.q, x.k, x.v, self.cu_seqlens, self.max_seqlen, x.scale)
        if not self.kernels:
            return kernel("encode_blocks").reference(*arguments)
        self.way = self.way or blocks_backends.fastest_backend(x.q, x.k, self.lengths)
        return blocks_backends.WAYS[self.way](*arguments)


def packed_pass(
    model: PreTrainedModel, texts: Sequence[Tensor], layers: int, write: Write, kernels: bool
) -> Callable[[], None]:
    """Return a function that runs a packed forward pass over blocks of token ids [T], up to the last layer's KV.

    Inputs are copied to the device now: between passes the copy would wait for the preceding pass.
    """
    request = PackedBlocks([len(tokens) for tokens in texts], layers, model.device, write, kernels)
    ids = torch.cat(list(texts)).to(model.device)
    return partial(_run, model, ids, request)


@torch.no_grad()
def _run(model: PreTrainedModel, ids: Tensor, request: PackedBlocks) -> None:
    with suppress(StopForward):
        packed_logits(model, ids, request.rows, [request], request.rows[:0])


def packs(lengths: Sequence[int], tokens: float = PACK) -> list[list[int]]:
    """Group the indices of `lengths`, in order, into groups of at most `tokens` tokens, or of one member."""
    groups: list[list[int]] = []
    total = 0
    for i, length in enumerate(lengths):
        if not groups or total + length > tokens:
            groups.append([])
            total = 0
        groups[-1].append(i)
        total += length
    return groups


def even_packs(lengths: Sequence[int], room: float) -> list[list[int]]:
    """Group neighbours into the fewest groups of at most `room` tokens, with balanced sizes."""
    fewest, total = packs(lengths, room), sum(lengths)
    for most in np.arange(total / len(fewest), min(room, total), total / len(lengths) / 2):
        if len(even := packs(lengths, most)) == len(fewest):
            return even
    return fewest
