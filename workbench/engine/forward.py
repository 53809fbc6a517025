"""Encode blocks, assemble a prompt from them, prefill what a plan asks for."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from transformers import PreTrainedModel

from workbench.core.blocks import Block, Prompt
from workbench.core.errors import BadInput
from workbench.core.kv import KV
from workbench.core.masks import causal
from workbench.core.plan import Plan
from workbench.core.rope import rotate_by, turn
from workbench.engine import backends, packed_encoding
from workbench.engine.attention import PlannedRequest, StopForward
from workbench.engine.support import ModelSpec, attach, prepare_model

__all__ = [
    "Positions", "PrefillOutput", "PrefillRequest",
    "assemble", "empty", "encode", "encode_many", "packs", "prefill", "prefill_many", "prepare_model",
]  # fmt: skip

Positions = Literal["re-encoded", "naive"]
PACK = 8192  # most tokens that encode_many packs in one forward pass (a longer block goes alone)


@dataclass(frozen=True)
class PrefillRequest:
    """One request of a batch: `tokens` [T] of the whole prompt, what to compute, and the KV to read and write."""

    tokens: torch.Tensor
    plan: Plan
    kv: KV


@dataclass(frozen=True)
class PrefillOutput:
    """`logits` [R, V] of the computed rows (None when the plan stopped early); watched `queries[layer]` [Hq, R, D];
    `executors[layer]`: the name of what carried out the attention (`workbench.engine.backends`)."""

    logits: torch.Tensor | None
    queries: dict[int, torch.Tensor] = field(default_factory=dict)
    backends: dict[int, str] = field(default_factory=dict)


def empty(model: PreTrainedModel, length: int, reserve: int = 0) -> KV:
    """Unwritten KV for `length` tokens of this model, with capacity for `room` more."""
    spec = attach(model)
    return KV.zeros(spec.shapes, length, reserve, dtype=spec.dtype, device=spec.device)


def prefill(model: PreTrainedModel, tokens: torch.Tensor, plan: Plan, kv: KV, logits_to_keep: int = 0) -> PrefillOutput:
    """Compute `plan.rows` of the prompt `tokens` [T]: their KV is written in place, all else is read from `kv`.

    `logits_to_keep`: how many of the last rows get logits, 0 for all. BadInput before any work where parts do not fit.
    """
    return prefill_many(model, [PrefillRequest(tokens, plan, kv)], logits_to_keep)[0]


def prefill_many(
    model: PreTrainedModel, requests: Sequence[PrefillRequest], logits_to_keep: int = 0
) -> list[PrefillOutput]:
    """Prefill requests of different lengths, caches and plans in one forward pass, packed without padding."""
    spec = attach(model)
    for request in requests:
        _check_work(spec, request)
    return run(
        model,
        [
            (request.tokens[request.plan.rows.to(request.tokens.device)], request.plan, request.kv)
            for request in requests
        ],
        logits_to_keep,
    )


@torch.no_grad()
def run(
    model: PreTrainedModel, parts: Sequence[tuple[torch.Tensor, Plan, KV]], logits_to_keep: int = 0
) -> list[PrefillOutput]:
    """The packed forward pass itself: (token ids [R] of the rows, plan, kv) per request, not checked."""
    if not parts:
        return []
    requests = [PlannedRequest(plan, kv, model.device, logits_to_keep) for _, plan, kv in parts]
    lengths = [len(request.rows) for request in requests]
    kept = [min(logits_to_keep, n) if logits_to_keep else n for n in lengths]
    ends = torch.tensor(lengths).cumsum(0).tolist()
    which = torch.cat([torch.arange(end - n, end) for end, n in zip(ends, kept, strict=True)]).to(model.device)
    try:
        out = model(
            input_ids=torch.cat([ids.to(model.device) for ids, _, _ in parts])[None],
            position_ids=torch.cat([request.rows for request in requests])[None],
            use_cache=False,
            logits_to_keep=which if sum(kept) < sum(lengths) else 0,
            parts=requests,
        )
    except StopForward:
        return [PrefillOutput(None, request.queries, request.backends) for request in requests]
    logits = out.logits[0].split(kept)
    return [
        PrefillOutput(None if request.num_layers else part, request.queries, request.backends)
        for request, part in zip(requests, logits, strict=True)
    ]


def encode(model: PreTrainedModel, block: Block, after: Sequence[Block] = ()) -> KV:
    """KV of one block on its own, or of a block that may look back at the blocks `after` which it stands.

    Its keys are rotated for the positions behind `after` (`start`), and the KV of `after` is not kept.
    """
    return encode_many(model, [block], [after])[0]


def encode_many(model: PreTrainedModel, blocks: Sequence[Block], after: Sequence[Sequence[Block]] = ()) -> list[KV]:
    """KV of every block, computed apart, packed into few forward passes; block i may look back at blocks `after[i]`."""
    before = list(after) or [()] * len(blocks)
    if len(before) != len(blocks):
        raise BadInput(f"`after` has {len(before)} entries for {len(blocks)} blocks: give one list of blocks for each")
    spec = attach(model)
    runs = [
        torch.tensor([t for b in (*past, block) for t in b.tokens]) for past, block in zip(before, blocks, strict=True)
    ]
    for block, tokens in zip(blocks, runs, strict=True):
        check_fit(model, spec, len(block))
        check_tokens(spec, tokens)
    done: list[KV] = []
    for group in packs([len(tokens) for tokens in runs]):
        kvs = [KV.zeros(spec.shapes, len(runs[i]), dtype=spec.dtype, device=spec.device) for i in group]
        _encode(model, spec, [runs[i] for i in group], kvs)
        done += [
            kv if len(kv) == len(blocks[i]) else kv.slice(len(kv) - len(blocks[i]), len(kv))
            for i, kv in zip(group, kvs, strict=True)
        ]
    return done


def _encode(model: PreTrainedModel, spec: ModelSpec, runs: Sequence[torch.Tensor], kvs: Sequence[KV]) -> None:
    """One packed forward pass; on a GPU one launch a layer carries out all runs (`kernels/encode_blocks.py`)."""
    lengths = [len(tokens) for tokens in runs]
    seen_whole = spec.window is None or max(lengths) <= spec.window
    if not (backends.on_gpu(spec.device) and spec.dtype != torch.float32 and seen_whole):
        plans = [Plan(torch.arange(n), num_layers=spec.layers) for n in lengths]
        run(model, list(zip(runs, plans, kvs, strict=True)))
        return

    def write(layer: int, *fresh: torch.Tensor) -> None:
        for kv, k, v in zip(kvs, *(x.split(lengths, 1) for x in fresh), strict=True):
            kv.keys[layer].copy_(k)
            kv.values[layer].copy_(v)

    packed_encoding.encode(model, runs, spec.layers, write, kernels=True)


def assemble(
    model: PreTrainedModel, prompt: Prompt, cached: Sequence[KV], positions: Positions = "re-encoded", reserve: int = 0
) -> KV:
    """KV of a prompt with its context blocks in place and its question unwritten, capacity for `room` more tokens.

    positions  "re-encoded": keys are turned, once and in fp32 from the cached copy, to where their block stands now;
               "naive": keys stay as cached, so every block believes to stand where it was encoded (PromptCache).
    """
    if positions not in ("re-encoded", "naive"):
        raise BadInput(f"positions {positions!r}: it is 're-encoded' or 'naive'")
    spec = attach(model)
    _check_cached(model, spec, prompt, cached)
    end, blocks = prompt.starts[-1], [block.to(spec.device) for block in cached]
    shifts = torch.tensor([start - block.start for start, block in zip(prompt.starts, cached, strict=False)])
    lengths = torch.tensor([len(block) for block in cached])
    capacity = len(prompt) + reserve
    values = [_joined([block.values[layer] for block in blocks], capacity, spec.dtype) for layer in range(spec.layers)]
    if positions == "re-encoded" and bool(shifts.any()):
        keys = _turned(spec, blocks, shifts, lengths, end, capacity)
    else:
        keys = [_joined([block.keys[layer] for block in blocks], capacity, spec.dtype) for layer in range(spec.layers)]
    return KV.within(keys, values, len(prompt))


def _joined(parts: list[torch.Tensor], capacity: int, dtype: torch.dtype) -> torch.Tensor:
    """[H, T, D] each, one behind the other, then zeros up to `capacity` tokens, in one copy."""
    heads, _, width = parts[0].shape
    whole = parts[0].new_empty(heads, capacity, width, dtype=dtype)
    end = sum(part.shape[1] for part in parts)
    torch.cat(parts, 1, out=whole[:, :end])
    whole[:, end:] = 0
    return whole


def _turned(
    spec: ModelSpec, blocks: Sequence[KV], shifts: torch.Tensor, lengths: torch.Tensor, end: int, capacity: int
) -> list[torch.Tensor]:
    """Keys of all layers, every block turned by its move, then zeros up to `capacity` tokens."""
    on_gpu, keys = backends.on_gpu(spec.device), []
    far = shifts.repeat_interleave(lengths).to(spec.device) if on_gpu else shifts
    tables: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    gathered: dict[tuple[int, int], torch.Tensor] = {}  # keys as cached; used by one layer after the other
    for layer, (heads, width) in enumerate(spec.shapes):
        table = spec.inv_freq[layer]
        together = torch.cat([block.keys[layer] for block in blocks], 1, out=gathered.get((heads, width)))
        gathered[heads, width] = together
        keys.append(torch.empty(heads, capacity, width, dtype=spec.dtype, device=spec.device))
        if on_gpu:
            backends.turned(together, far, table, spec.pairing, keys[-1][:, :end], kernels=True)
        else:
            if id(table) not in tables:  # one angle a block, not a token
                cos, sin = (x.repeat_interleave(lengths.to(x.device), 0) for x in turn(shifts, table, spec.device))
                tables[id(table)] = cos, sin
            rotate_by(together, *tables[id(table)], spec.pairing, out=keys[-1][:, :end])
        keys[-1][:, end:] = 0
    return keys


def check_fit(model: PreTrainedModel, spec: ModelSpec, length: int) -> None:
    """Refuse a block longer than the model's sliding window: its first tokens would be out of sight of its last."""
    if spec.window and length > spec.window:
        raise BadInput(
            f"a block of {length} tokens does not fit the sliding window of {spec.window} tokens of "
            f"{model.config.name_or_path or model.config.model_type}: cut it into shorter blocks"
        )


def packs(lengths: Sequence[int], tokens: int = PACK) -> list[list[int]]:
    """Indices in order, grouped to at most `tokens` tokens (a longer one goes alone)."""
    groups: list[list[int]] = []
    total = 0
    for i, length in enumerate(lengths):
        if not groups or total + length > tokens:
            groups.append([])
            total = 0
        groups[-1].append(i)
        total += length
    return groups


def check_tokens(spec: ModelSpec, tokens: torch.Tensor) -> None:
    """Refuse a prompt [T] that is no list of this model's token ids, or is over its context."""
    if tokens.ndim != 1:
        raise BadInput(f"tokens must be one list of token ids, got a tensor of {tuple(tokens.shape)}")
    if spec.context and len(tokens) > spec.context:
        raise BadInput(f"a prompt of {len(tokens)} tokens is over the model's context of {spec.context} tokens")
    if int(tokens.max()) >= spec.vocabulary or int(tokens.min()) < 0:
        raise BadInput(
            f"token ids {int(tokens.min())} to {int(tokens.max())} are not all in the model's vocabulary "
            f"of {spec.vocabulary}"
        )


def _check_work(spec: ModelSpec, request: PrefillRequest) -> None:
    plan, kv = request.plan, request.kv
    check_tokens(spec, request.tokens)
    last = int(plan.rows[-1])
    if last >= len(request.tokens):
        raise BadInput(f"row {last} is outside a prompt of {len(request.tokens)} tokens")
    check_cache(spec, kv)
    if last >= len(kv):
        raise BadInput(f"row {last} is outside a KV of {len(kv)} tokens")
    if plan.num_layers is not None and not 1 <= plan.num_layers <= spec.layers:
        raise BadInput(f"num_layers {plan.num_layers}: the model has {spec.layers} layers, it is 1 to {spec.layers}")
    deepest = plan.num_layers or spec.layers
    if bad := [layer for layer in plan.return_queries if not 0 <= layer < deepest]:
        raise BadInput(f"cannot return queries of layers {bad}: this plan computes layers 0 to {deepest - 1}")
    for (heads, width), window in {*zip(spec.shapes, spec.windows, strict=True)} if plan.backend else ():
        tile = getattr(plan.sparse, "size", None)  # of a function it is known in the layer only
        shape = (len(plan.rows), last + 1, (heads, heads), width, spec.dtype, spec.device, plan.sees is causal)
        backends.check(plan.backend, backends.AttentionProblem(*shape, bool(window and window <= last), tile=tile))


def check_cache(spec: ModelSpec, kv: KV) -> None:
    """Refuse a KV that a prompt of this model cannot be computed on."""
    _check_kv(spec, kv)
    if odd := {(x.dtype, x.device) for x in kv.tensors()} - {(spec.dtype, spec.device)}:
        raise BadInput(f"this KV is {odd.pop()}, the model computes in {spec.dtype} on {spec.device}")
    if kv.start:
        raise BadInput(f"a KV that starts at position {kv.start} cannot be prefilled: assemble a prompt from it")
    if kv.read_only:
        raise BadInput("this KV is shared and read-only (a store handed it out): assemble a prompt from it or clone it")


def _check_kv(spec: ModelSpec, kv: KV) -> None:
    shapes = [(x.shape[0], x.shape[2]) for x in kv.keys]
    if shapes != spec.shapes:
        raise BadInput(
            f"this KV is of another model: {len(shapes)} layers of (heads, width) {sorted(set(shapes))}, "
            f"the model has {spec.layers} of {sorted(set(spec.shapes))}"
        )


def _check_cached(model: PreTrainedModel, spec: ModelSpec, prompt: Prompt, cached: Sequence[KV]) -> None:
    if len(cached) != len(prompt.context):
        raise BadInput(f"{len(cached)} cached KVs for {len(prompt.context)} context blocks: give one for each")
    for i, (block, kv) in enumerate(zip(prompt.context, cached, strict=True)):
        _check_kv(spec, kv)
        if len(kv) != len(block):
            raise BadInput(f"cached KV {i} holds {len(kv)} tokens, its block has {len(block)}")
        check_fit(model, spec, len(block))
    check_tokens(spec, prompt.tokens)
