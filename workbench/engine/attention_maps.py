"""Attention weights from the queries and keys of a prefill: per token, within blocks, between blocks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

import torch
from torch import Tensor
from transformers import PreTrainedModel

from workbench.core.blocks import Prompt
from workbench.core.errors import BadInput
from workbench.core.kv import KV
from workbench.core.masks import Sees, causal, visible, window
from workbench.core.plan import Choose, Pass, Plan
from workbench.engine.assembly import empty
from workbench.engine.encoding import watch
from workbench.engine.forward import PrefillRequest, prefill_many
from workbench.models.families import declared_window, decoder_config

ELEMENTS = 1 << 26  # maximum number of logits in memory at once
Layers = str | int | list[int] | tuple[int, ...]


def layers_of(model: PreTrainedModel, layers: Layers) -> list[int]:
    """Return the layer numbers of "all", of "last" or of a list, where negative ones count from the end.

    "last" is the last layer without a sliding window. Raises BadInput for anything else.
    """
    count = decoder_config(model.config).num_hidden_layers
    if layers == "all":
        return list(range(count))
    if layers == "last":
        return [max((i for i in range(count) if not declared_window(model.config, i)), default=count - 1)]
    if isinstance(layers, int):
        layers = (layers,)
    chosen = sorted({layer + count if layer < 0 else layer for layer in layers if isinstance(layer, int)})
    if chosen[0] < 0 or chosen[-1] >= count:
        raise BadInput(f"layers {layers}: the model has layers 0 to {count - 1}, or -{count} to -1")
    return chosen


def whole_layers(model: PreTrainedModel, length: int) -> list[int]:
    """Return the layers whose sliding window, if any, covers a whole prompt of `length` tokens."""
    windows = [declared_window(model.config, layer) for layer in layers_of(model, "all")]
    return [layer for layer, size in enumerate(windows) if not size or size >= length]


def mean_queries(
    model: PreTrainedModel, chosen: list[int], parts: Sequence[tuple[Tensor, Tensor, Sees, KV]], last: int = 0
) -> list[Tensor]:
    """Return the mean query [L, Hq, D] over the `last` rows (0: all) of each (tokens, rows, mask rule, KV)."""
    plans = [Plan(rows, sees, return_queries=tuple(chosen), num_layers=chosen[-1] + 1) for _, rows, sees, _ in parts]
    requests = [PrefillRequest(tokens, plan, kv) for (tokens, *_, kv), plan in zip(parts, plans, strict=True)]
    queries = [output.queries for output in prefill_many(model, requests)]
    return [torch.stack([each[layer][:, -last:].float().mean(1) for layer in chosen]).cpu() for each in queries]


def logits(
    model: PreTrainedModel, layer: int, queries: Tensor, keys: Tensor, rows: Tensor, sees: Sees | None = causal
) -> Iterator[tuple[slice, Tensor]]:
    """Yield attention logits of queries [Hq, R, D] at positions `rows` [R] over keys [H, T, D], in chunks of rows.

    Each item is (slice of rows, [Hq, r, T] fp32), with -inf where the mask rule `sees` or the layer's sliding window
    masks a key. With `sees` None, nothing is masked.
    """
    size = declared_window(model.config, layer)
    scale = getattr(model.get_decoder().layers[layer].self_attn, "scaling", None) or queries.shape[-1] ** -0.5
    rows, cols = rows.to(keys.device), torch.arange(keys.shape[1], device=keys.device)
    grouped = queries.unflatten(0, (keys.shape[0], -1))  # GQA without copies
    step = max(1, ELEMENTS // max(1, queries.shape[0] * keys.shape[1]))
    for at in range(0, len(rows), step):
        part = slice(at, min(at + step, len(rows)))
        found = products(grouped[:, :, part].flatten(1, 2), keys).mul_(scale)
        found = found.unflatten(1, (grouped.shape[1], -1)).flatten(0, 1)
        if sees is not None:
            seen = visible(sees, rows[part], cols)
            if size:
                seen = seen & visible(window(size), rows[part], cols)
            found.masked_fill_(~seen, -torch.inf)
        yield part, found


def products(queries: Tensor, keys: Tensor) -> Tensor:
    """Return queries [H, R, D] times keys [H, T, D] -> [H, R, T] in fp32; on a GPU without fp32 copies."""
    if keys.is_cuda and queries.dtype == keys.dtype != torch.float32:
        found: Tensor = torch.bmm(queries, keys.mT, out_dtype=torch.float32)  # products of 16-bit numbers are exact
        return found
    return queries.float() @ keys.float().mT


def softmax(scores: Tensor) -> Tensor:
    """Return the softmax over the last axis; a row of only -inf gets 0."""
    return scores.softmax(-1).nan_to_num(0.0)


def within_blocks(scores: Tensor, lengths: Sequence[int]) -> Tensor:
    """Return the softmax of [..., T] within each block of `lengths`; a block of only -inf gets 0."""
    sizes = torch.tensor(lengths)
    starts = sizes.cumsum(0) - sizes
    offset = torch.arange(int(sizes.max()))
    place = (starts[:, None] + offset).clamp(max=scores.shape[-1] - 1).to(scores.device)  # [B, longest]
    beyond = (offset >= sizes[:, None]).to(scores.device)
    return softmax(scores[..., place].masked_fill(beyond, -torch.inf))[..., ~beyond]


@dataclass(frozen=True)
class Crossing:
    """Attention between the B context blocks (T tokens) of one prompt, mean over layers and heads."""

    paid: Tensor  #: [T, B] attention from each token to each block, including its own; rows sum to 1
    received: Tensor  #: [T] attention to each token from the tokens of later blocks


def crossing(model: PreTrainedModel, prompts: Sequence[Prompt], layers: Layers = "all") -> list[Crossing]:
    """Return the attention between blocks under full attention, from a prefill up to the deepest of `layers`."""
    chosen = layers_of(model, layers)
    requests = []
    for prompt in prompts:
        plan = Plan(torch.arange(prompt.starts[-1]), return_queries=tuple(chosen), num_layers=chosen[-1] + 1)
        requests.append(PrefillRequest(prompt.tokens, plan, empty(model, len(prompt))))
    found = []
    for prompt, request, output in zip(prompts, requests, prefill_many(model, requests), strict=True):
        places = request.plan.rows.to(model.device)
        of = prompt.block_of[: prompt.starts[-1]].to(model.device)
        member = torch.nn.functional.one_hot(of, len(prompt.context)).float()  # [T, B]
        paid, received = torch.zeros_like(member), torch.zeros_like(member[:, 0])
        for layer, (first, last) in product(chosen, pairwise(prompt.starts)):
            queries, keys = output.queries[layer][:, first:last], request.kv.keys[layer][:, :last]
            for rows, scores in logits(model, layer, queries, keys, places[first:last]):
                share = scores.softmax(-1).mean(0) / len(chosen)  # [r, T] up to the block's end
                paid[first:last][rows] += share @ member[:last]
                received[:first] += share[:, :first].sum(0)
        found.append(Crossing(paid, received))
    return found


def from_question(
    model: PreTrainedModel,
    prompts: Sequence[Prompt],
    kvs: Sequence[KV],
    layers: Layers,
    last: int | None = None,
    over: str = "block",
    system: int = 1,
    sparse: Sequence[Choose | None] = (),
) -> list[Tensor]:
    """Return the attention [T] of each prompt's question to its context tokens, over the assembled KVs `kvs`.

    last    sum over this many last question tokens (None: all), and over layers and heads
    over    the softmax runs over each "block" separately, over the "documents" (the context without its first `system`
            blocks), the "context" or the whole "prompt"
    sparse  sparse method of each prompt's question while it is computed

    The question is prefilled, which writes its keys and values to `kvs`.
    """
    chosen = layers_of(model, layers)
    plans = [
        Plan(prompt.question, sparse=choice, return_queries=tuple(chosen), num_layers=chosen[-1] + 1)
        for prompt, choice in zip(prompts, sparse or [None] * len(prompts), strict=True)
    ]
    requests = [PrefillRequest(p.tokens, plan, kv) for p, plan, kv in zip(prompts, plans, kvs, strict=True)]
    found = []
    for request, prompt, output in zip(requests, prompts, prefill_many(model, requests), strict=True):
        lengths, first = [len(block) for block in prompt.blocks], -(last or len(prompt.question))
        begin = prompt.starts[min(system, len(prompt.context))] if over == "documents" else 0
        here = slice(begin, prompt.starts[-1] if over in ("documents", "context") else None)
        total, rows = torch.zeros(len(prompt), device=model.device), prompt.question[first:].to(model.device)
        for layer in chosen:
            queries, keys = output.queries[layer][:, first:], request.kv.keys[layer][:, : len(prompt)]
            if over in ("documents", "context") and not declared_window(model.config, layer):  # no mask needed
                for _, scores in logits(model, layer, queries, keys[:, here], rows, None):
                    total[here] += scores.softmax(-1).sum((0, 1))
                continue
            for _, scores in logits(model, layer, queries, keys, rows):
                weights = within_blocks(scores, lengths) if over == "block" else softmax(scores[..., here])
                total[here] += weights.sum((0, 1))
        found.append(total[: prompt.starts[-1]])
    return found


def question_attention(model: PreTrainedModel, prompts: Sequence[Prompt], layers: Layers) -> list[Tensor]:
    """Return the attention [T] of the question to context tokens under full attention, summed over layers and heads."""
    lengths, totals = [len(prompt) for prompt in prompts], [torch.zeros(len(p)).to(model.device) for p in prompts]

    def add(layer: int, queries: Tensor, keys: Tensor) -> None:
        for number, (q, k) in enumerate(zip(queries.split(lengths, 1), keys.split(lengths, 1), strict=True)):
            rows = prompts[number].question
            for _, scores in logits(model, layer, q[:, rows[0] :], k, rows):
                totals[number] += scores.softmax(-1).sum((0, 1))

    watch(model, [prompt.tokens for prompt in prompts], add, layers_of(model, layers))
    return [total[: prompt.starts[-1]].cpu() for total, prompt in zip(totals, prompts, strict=True)]


def question_pass(model: PreTrainedModel, prompt: Prompt, layers: Layers) -> Pass:
    """Return the forward pass of `from_question` for one prompt, to count its cost."""
    return Pass(prompt.question.tolist(), len(prompt), layers_of(model, layers)[-1] + 1)
