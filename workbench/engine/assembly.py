"""Assemble a prompt's KV from cached blocks, with keys rerotated to their new positions."""

from collections.abc import Callable, Sequence, Set
from typing import get_args

import torch
from torch import Tensor
from transformers import PreTrainedModel

from workbench.core import Positions as Positions
from workbench.core.blocks import Prompt
from workbench.core.errors import BadInput
from workbench.core.kv import KV, layered, side_by_side
from workbench.core.rope import cos_sin, rotate_by
from workbench.core.utils import annotations
from workbench.core.utils.annotations import Count
from workbench.engine.attention_backends.choice import on_gpu, rerotate
from workbench.models.spec import ModelSpec, attach, spec_for


def empty(model: PreTrainedModel, length: int, reserve: int = 0) -> KV:
    """Return unwritten KV for `length` tokens of this model, with capacity for `reserve` more."""
    return attach(model).empty(length, reserve)


@annotations.checked
def assemble(
    model: PreTrainedModel,
    prompt: Prompt,
    cached: Sequence[KV],
    positions: Positions = "re-encoded",
    reserve: Count = 0,
) -> KV:
    """Return the prompt's KV, joined from those of its context blocks; the question is unwritten.

    cached     the KV of each context block, in order
    positions  "re-encoded": keys are rerotated, once and in fp32 from the cached copy, to their block's new position;
               "naive": keys are unchanged, with the positions of their encoding (PromptCache);
               "shared": blocks share positions, and the longest ends directly before the question (APE)
    reserve    capacity for this many more tokens
    """
    spec, shifts = _checked(model, prompt, cached, positions)
    blocks, capacity = [block.to(spec.device) for block in cached], len(prompt) + reserve
    if (whole := _together(spec, blocks, shifts, capacity)) is not None:
        return KV.from_buffers(*whole, len(prompt))
    kv, place = _by_layer(spec, blocks, shifts, len(prompt), capacity)
    for layer in range(spec.layers):
        place(layer)
    return kv


@annotations.checked
def assembly_of(
    model: PreTrainedModel,
    prompt: Prompt,
    cached: Sequence[KV],
    positions: Positions = "re-encoded",
    reserve: Count = 0,
) -> tuple[KV, Callable[[int], None]]:
    """Return the KV that `assemble` would return, unwritten, and a function that writes the blocks of one layer.

    For a prefill that starts before all layers are loaded (`waits` of `prefill_many`).
    """
    spec, shifts = _checked(model, prompt, cached, positions)
    return _by_layer(spec, cached, shifts, len(prompt), len(prompt) + reserve)


def check_positions(positions: str) -> None:
    """Raise BadInput for anything but "re-encoded", "naive" and "shared"."""
    if positions not in get_args(Positions):
        raise BadInput(f"positions {positions!r}: it is 're-encoded', 'naive' or 'shared'")


def shifts_of(blocks: Sequence[tuple[int, int]], positions: Positions) -> Tensor:
    """Return the shift [B] of each block's keys, in positions; `blocks` are (position at encoding, length)."""
    starts, lengths = torch.tensor(blocks, dtype=torch.int64).reshape(-1, 2).unbind(1)
    if positions == "re-encoded":
        return lengths.cumsum(0) - lengths - starts
    shift = int(lengths.sum() - (starts + lengths).amax()) if positions == "shared" and len(blocks) else 0
    return torch.full_like(starts, shift)


def _together(
    spec: ModelSpec, blocks: Sequence[KV], shifts: Tensor, capacity: int
) -> tuple[list[Tensor], list[Tensor]] | None:
    """Return keys and values of all layers, joined in few calls; None if layers are not contiguous in memory.

    For CPUs: each call rerotates the keys of one block while they are in the processor's cache.
    """
    if spec.device.type != "cpu" or len({id(table) for table in spec.inv_freq}) > 1 or not blocks:
        return None
    parts = [part for block in blocks if (part := block.stacked()) is not None and part[0].dtype == spec.dtype]
    if len(parts) < len(blocks):
        return None
    keys, values = (side_by_side(torch.empty, spec.shapes, capacity, dtype=spec.dtype) for _ in range(2))
    all_keys, all_values = layered(keys), layered(values)
    if all_keys is None or all_values is None:
        return None
    cos, sin = cos_sin(shifts, spec.inv_freq[0], spec.device)
    cos, at = torch.cat((cos, cos), -1), 0
    for (k, _), shift, c, s in zip(parts, shifts.tolist(), cos.split(1), sin.split(1), strict=True):
        here = slice(at, at := at + k.shape[2])
        if shift:
            rotate_by(k, c, s, spec.pairing, out=all_keys[:, :, here])
        else:
            all_keys[:, :, here] = k
    torch.cat([v for _, v in parts], 2, out=all_values[:, :, :at])
    all_keys[:, :, at:] = 0
    all_values[:, :, at:] = 0
    return keys, values


def _by_layer(
    spec: ModelSpec, blocks: Sequence[KV], shifts: Tensor, length: int, capacity: int
) -> tuple[KV, Callable[[int], None]]:
    """Return unwritten KV of `length` tokens, and a function that writes a layer's blocks."""
    lengths = torch.tensor([len(block) for block in blocks], dtype=torch.int64)
    end, shifted, kernels = int(lengths.sum()), bool(shifts.any()), on_gpu(spec.device)
    by_token = shifts.repeat_interleave(lengths).to(spec.device) if kernels else shifts
    keys, values = (
        [torch.empty(heads, capacity, width, dtype=spec.dtype, device=spec.device) for heads, width in spec.shapes]
        for _ in range(2)
    )
    for whole in (*keys, *values):
        whole[:, end:] = 0
    tables: dict[int, tuple[Tensor, Tensor]] = {}
    gathered: dict[tuple[int, int], Tensor] = {}  # buffer for keys as cached, reused by layers

    def place(layer: int) -> None:
        out, table, shape = keys[layer][:, :end], spec.inv_freq[layer], spec.shapes[layer]
        torch.cat([block.values[layer].to(spec.device) for block in blocks], 1, out=values[layer][:, :end])
        cached = [block.keys[layer].to(spec.device) for block in blocks]
        if not shifted:
            torch.cat(cached, 1, out=out)
            return
        together = gathered[shape] = torch.cat(cached, 1, out=gathered.get(shape))
        if kernels:
            rerotate(together, by_token, table, spec.pairing, out, kernels=True)
            return
        if id(table) not in tables:  # one angle per block, not per token
            cos, sin = (x.repeat_interleave(lengths.to(x.device), 0) for x in cos_sin(shifts, table, spec.device))
            tables[id(table)] = cos, sin
        rotate_by(together, *tables[id(table)], spec.pairing, out=out)

    return KV.from_buffers(keys, values, length), place


def _checked(
    model: PreTrainedModel, prompt: Prompt, cached: Sequence[KV], positions: Positions
) -> tuple[ModelSpec, Tensor]:
    """Return the model's spec and the shift [B] of each block. Raises BadInput for KVs that do not fit."""
    check_positions(positions)
    spec = spec_for(model, [prompt.tokens])
    if len(cached) != len(prompt.context):
        raise BadInput(f"{len(cached)} cached KVs for {len(prompt.context)} context blocks: give one for each")
    alike = set(spec.shapes)
    for i, (block, kv) in enumerate(zip(prompt.context, cached, strict=True)):
        whole, count = kv.stacked() if isinstance(kv, KV) else None, len(block)
        if whole is None or whole[0].dtype != spec.dtype or not _fits(spec, alike, *(x.shape for x in whole)):
            spec.check_shapes(kv)
        if len(kv) != count:
            raise BadInput(f"cached KV {i} holds {len(kv)} tokens, its block has {count}")
        if spec.window:
            spec.check_block(count)
    return spec, shifts_of([(block.start, len(block)) for block in cached], positions)


def _fits(spec: ModelSpec, alike: Set[tuple[int, int]], keys: torch.Size, values: torch.Size) -> bool:
    """Return whether shapes [L, H, T, D] of keys and values fit a model whose layers are all `alike` [(H, D)]."""
    return keys == values and keys[0] == spec.layers and alike == {(keys[1], keys[3])}
