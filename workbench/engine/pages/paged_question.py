"""Attention of the question to context tokens over a pool of pages: the scores of question-guided selectors.

A `Runner` prefills the question, on a GPU as a captured step, and returns its queries. A kernel computes the attention
to the keys of all layers in their pages; if it does not support them, keys are copied out and rerotated layer by
layer. The scores equal those of `attention_maps.from_question` over an assembled KV, up to rounding, and stay on the
device.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from workbench.core.utils.wide_copies import gather_tokens
from workbench.engine import attention_maps
from workbench.engine.assembly import shifts_of
from workbench.engine.attention_backends.choice import kernel, rerotate
from workbench.engine.attention_maps import Layers, layers_of
from workbench.engine.graphs.cuda_graphs import Runner
from workbench.engine.pages.paged_pool import Pool
from workbench.engine.pages.paged_prompt import Cached


@dataclass(frozen=True, eq=False)
class BlockTokens:
    """The tokens of B blocks in a pool, padded to the longest block; on the pool's device.

    slots    [B · W] slot of each token in the pool; padding repeats a slot of its block
    shift    [B · W] positions by which each key is rerotated; None: none are
    beyond   [B, W] bool, True at padding
    padded   whether there is padding
    """

    slots: Tensor
    shift: Tensor | None
    beyond: Tensor
    padded: bool

    @classmethod
    def of(cls, pool: Pool, context: Sequence[Cached]) -> "BlockTokens":
        lengths = torch.tensor([len(block) for block in context])
        offset = torch.arange(int(lengths.max()))
        beyond = offset >= lengths[:, None]
        slots = torch.stack([pool.slots(block)[offset.clamp(max=len(block) - 1)] for block in context])
        by_block = lengths.cumsum(0) - lengths - torch.tensor([block.start for block in context])
        shift = by_block.repeat_interleave(len(offset)) if bool(by_block.any()) else None
        where, padded = pool.device, bool(beyond.any())
        return cls(slots.flatten().to(where), None if shift is None else shift.to(where), beyond.to(where), padded)

    def keys(self, pool: Pool, layer: int) -> Tensor:
        """Return the keys [H, B · W, D] of a layer, rerotated to their new positions."""
        keys = gather_tokens(pool.keys[layer], self.slots)
        if self.shift is None:
            return keys
        table, out = pool.inv_freq[layer], torch.empty_like(keys)
        rerotate(keys, self.shift, table, pool.pairing, out, pool.kernels)
        return out


@torch.no_grad()
def from_question(
    runner: Runner,
    context: Sequence[Cached],
    question: Tensor,
    layers: Layers = "last",
    last: int | None = None,
    wait: Callable[[int], None] | None = None,
    over: str = "block",
    system: int = 1,
    meanwhile: Callable[[], None] | None = None,
) -> Tensor:
    """Return the attention [T] (fp32) of the question to each context token.

    context, question  the blocks in reading order; token ids [R]
    layers, last       the sum is over these layers, all heads and the `last` question tokens (None: all)
    wait               that of `Runner.prefill`
    over, system       the softmax runs over each "block" separately, over the "documents" (without the first `system`
                       blocks) or over the "context"
    meanwhile          host work to run while a GPU computes the question

    Pages for the question are allocated during the call.
    """
    pool, chosen = runner.pool, tuple(layers_of(runner.model, layers))
    prompt = pool.open(context, len(question))
    try:
        _, queries = runner.prefill_queries([prompt], [question], chosen, wait)
    finally:
        pool.close(prompt)
    if meanwhile is not None:
        meanwhile()
    skip = system if over == "documents" else 0
    if (found := by_kernel(runner, context, queries, last, over != "block", skip)) is not None:
        return found
    places = BlockTokens.of(pool, context)
    total = torch.zeros(places.beyond.shape, device=pool.device)
    hidden = places.beyond | (torch.arange(len(context)) < skip).to(pool.device)[:, None]
    with pool.in_order():
        for layer in chosen:
            own = getattr(runner.model.get_decoder().layers[layer].self_attn, "scaling", None)
            rows = queries[layer][0, :, -(last or len(question)) :]
            keys = places.keys(pool, layer)
            total += weights(rows, keys, total.shape, hidden if places.padded or skip else None, own, over)
    return total[~places.beyond]


def by_kernel(
    runner: Runner,
    context: Sequence[Cached],
    queries: Mapping[int, Tensor],
    last: int | None,
    together: bool = False,
    skip: int = 0,
) -> Tensor | None:
    """Score context tokens over all layers in their pages, with one kernel; None if it does not support them.

    `queries[layer]` is [1, Hq, R, D], of which the `last` rows are used (None: all). `together`: one softmax over all
    blocks except the first `skip`, which get 0.
    """
    pool, decoder, chosen, scored = runner.pool, runner.model.get_decoder(), list(queries), context[skip:]
    module = kernel("_pages.block_scores")
    keys, tables = [pool.keys[layer] for layer in chosen], [pool.inv_freq[layer] for layer in chosen]
    scales = {getattr(decoder.layers[layer].self_attn, "scaling", None) for layer in chosen}
    if not pool.kernels or len(scales) > 1 or not module.takes(keys, tables, max(map(len, scored), default=0)):
        return None
    rows = torch.stack([queries[layer][0, :, -(last or queries[layer].shape[2]) :] for layer in chosen])
    shifts = shifts_of([(block.start, len(block)) for block in context], "re-encoded").tolist()[skip:]
    blocks = module.Blocks([block.numbers for block in scored], [*map(len, scored)], shifts)
    with pool.in_order():
        found = module.launch(rows, keys, blocks, tables[0], pool.pairing, pool.size, scales.pop(), together)
    return torch.cat((found.new_zeros(sum(map(len, context[:skip]))), found))


def weights(
    queries: Tensor, keys: Tensor, shape: torch.Size, hidden: Tensor | None, scale: float | None, over: str
) -> Tensor:
    """Return the softmax of queries [Hq, R, D] over B padded blocks of keys [H, B · W, D], summed to [B, W] (fp32).

    It runs over each block separately if `over` is "block", else over all. `hidden` [B, W] masks keys.
    """
    grouped, total = queries.unflatten(0, (len(keys), -1)).flatten(1, 2), torch.zeros(shape, device=keys.device)
    scale = scale or queries.shape[-1] ** -0.5
    step = max(1, attention_maps.ELEMENTS // (len(keys) * keys.shape[1]))
    for part in grouped.split(step, 1):
        logits = attention_maps.products(part, keys).mul_(scale)
        logits = logits.unflatten(-1, shape)
        if hidden is not None:
            logits.masked_fill_(hidden, -torch.inf)
        apart = logits if over == "block" else logits.flatten(-2)
        shares = apart.softmax(-1) if hidden is None else attention_maps.softmax(apart)
        total += shares.sum((0, 1)).view_as(total)
    return total
