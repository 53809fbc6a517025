"""Attention that context tokens get from the question, over a pool of pages: what question-guided methods choose by.

The question is prefilled by a `Runner`, as a captured step where there is a GPU, and its queries are kept. A kernel
weighs the keys of all layers in their pages; where it does not take them they are weighed layer by layer, copied out of
their pages and rerotated to where their block stands now. The scores are those of
`attention_maps.from_question` over an assembled cache; they stay on the device.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from workbench.core.utils.wide_copies import taken
from workbench.engine import attention_maps
from workbench.engine.assembly import shifts_of
from workbench.engine.attention_backends.choice import kernel, rerotate
from workbench.engine.attention_maps import Layers, layers_of
from workbench.engine.graphs.cuda_graphs import Runner
from workbench.engine.pages.paged_pool import Pool
from workbench.engine.pages.paged_prompt import Cached


@dataclass(frozen=True, eq=False)
class Places:
    """The tokens of B blocks in a pool, each block padded to the longest; on the pool's device.

    slots    [B · W] where in the pool a token lies; padding repeats a slot of its block
    shift    [B · W] by how many positions its key is rerotated; None: all keys stand where they were encoded
    beyond   [B, W] bool, padding
    padded   whether there is any
    """

    slots: Tensor
    shift: Tensor | None
    beyond: Tensor
    padded: bool

    @classmethod
    def of(cls, pool: Pool, context: Sequence[Cached]) -> "Places":
        lengths = torch.tensor([len(block) for block in context])
        offset = torch.arange(int(lengths.max()))
        beyond = offset >= lengths[:, None]
        slots = torch.stack([pool.slots(block)[offset.clamp(max=len(block) - 1)] for block in context])
        by_block = lengths.cumsum(0) - lengths - torch.tensor([block.start for block in context])
        shift = by_block.repeat_interleave(len(offset)) if bool(by_block.any()) else None
        where, padded = pool.device, bool(beyond.any())
        return cls(slots.flatten().to(where), None if shift is None else shift.to(where), beyond.to(where), padded)

    def keys(self, pool: Pool, layer: int) -> Tensor:
        """[H, B · W, D] keys of a layer, at the positions where they stand now."""
        keys = taken(pool.keys[layer], self.slots)
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
) -> Tensor:
    """[T] fp32: attention that each context token gets from the question.

    `context`: the blocks in reading order; `question` [R]: token ids. Summed over `layers`, heads and the `last`
    question tokens (None: all). Softmax within each "block" apart, over the "documents" or the "context". The pool is
    left as it was; it needs room for the question. `wait` is that of `Runner.prefill`.
    """
    pool, chosen = runner.pool, tuple(layers_of(runner.model, layers))
    prompt = pool.open(context, len(question))
    try:
        _, queries = runner.prefill_queries([prompt], [question], chosen, wait)
    finally:
        pool.close(prompt)
    skip = system if over == "documents" else 0
    if (found := by_kernel(runner, context, queries, last, over != "block", skip)) is not None:
        return found
    places = Places.of(pool, context)
    total = torch.zeros(places.beyond.shape, device=pool.device)
    hidden = places.beyond | (torch.arange(len(context)) < skip).to(pool.device)[:, None]
    with pool.in_order():
        for layer in chosen:
            own = getattr(runner.model.get_decoder().layers[layer].self_attn, "scaling", None)
            asked = queries[layer][0, :, -(last or len(question)) :]
            keys = places.keys(pool, layer)
            total += weights(asked, keys, total.shape, hidden if places.padded or skip else None, own, over)
    return total[~places.beyond]


def by_kernel(
    runner: Runner,
    context: Sequence[Cached],
    queries: Mapping[int, Tensor],
    last: int | None,
    together: bool = False,
    skip: int = 0,
) -> Tensor | None:
    """Score the tokens of all layers by one kernel, in their pages; None where it does not take them.

    `queries[layer]` [1, Hq, R, D], of which the `last` ask (None: all). `together`: one softmax over all blocks but the
    first `skip`, which get 0.
    """
    pool, decoder, chosen, scored = runner.pool, runner.model.get_decoder(), list(queries), context[skip:]
    module = kernel("_pages.block_scores")
    keys, tables = [pool.keys[layer] for layer in chosen], [pool.inv_freq[layer] for layer in chosen]
    scales = {getattr(decoder.layers[layer].self_attn, "scaling", None) for layer in chosen}
    if not pool.kernels or len(scales) > 1 or not module.takes(keys, tables, max(map(len, scored), default=0)):
        return None
    asked = torch.stack([queries[layer][0, :, -(last or queries[layer].shape[2]) :] for layer in chosen])
    shifts = shifts_of([(block.start, len(block)) for block in context], "re-encoded").tolist()[skip:]
    blocks = module.Blocks([block.numbers for block in scored], [*map(len, scored)], shifts)
    with pool.in_order():
        found = module.launch(asked, keys, blocks, tables[0], pool.pairing, pool.size, scales.pop(), together)
    return torch.cat((found.new_zeros(sum(map(len, context[:skip]))), found))


def weights(
    queries: Tensor, keys: Tensor, shape: torch.Size, hidden: Tensor | None, scale: float | None, over: str
) -> Tensor:
    """Return [B, W] fp32, `shape`: softmax of queries [Hq, R, D] over B padded blocks of keys [H, B · W, D], summed.

    Over each "block" apart, else over all blocks. `hidden` [B, W] bool: keys that no row sees; None: all are seen.
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
