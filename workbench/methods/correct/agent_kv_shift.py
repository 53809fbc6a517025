"""Shift all tokens of a passage by the mean deviation of a few recomputed probes (AgentKVShift, arXiv:2607.21604)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil

import torch
from torch import Tensor
from transformers import PreTrainedModel

from workbench.core.errors import BadInput
from workbench.engine.full_context import context_pass, exact, gap
from workbench.methods.correct import KV, Correct, Correction, Pass, Prompt, write
from workbench.methods.registry import integer_option, is_number, option_where


@dataclass(frozen=True)
class AgentKvShift(Correct):
    r"""Recompute the tokens of every passage that deviate most, and shift the others by the mean change of these.

    layer   layer in which deviation is measured; layers 0 to this one are computed for all tokens and are exact
    cap     maximum weight of a shift

    Probes are the ⌈ratio · n⌉ tokens of a passage with the largest distance, selected separately for keys and values,
    so up to twice the ratio is computed. With `select`, its tokens are the probes of both.

    *Follows the paper's algorithm 1 as a public reimplementation (moriowen/kvreuse) reads it.* A token that is a probe
    for values only also gets, and keeps, a recomputed key. Distances are measured after RoPE. Over pages, rows are
    computed on a contiguous copy, because every layer of the cache is written.

    *It reduces accuracy at low ratios:* up to a charged share of 20%, `smollm2-reader` answers fewer of Natural
    Questions than over the same blocks uncorrected (`data/benchmarks/notes.md`).

    With distances $d_t$ at `layer`, probes $P$ of a passage, and $x$ its keys or values in a later layer $l$, stale and
    fresh ($\hat x$):

    $$x_t^l \leftarrow x_t^l + \min(d_t, 1) \, \frac{1}{|P|} \sum_{p \in P} (\hat x_p^l - x_p^l), \quad t \notin P$$
    """

    chooses = True

    layer: int = integer_option(1, "it is a layer number, 0 or more")
    cap: float = option_where(1.0, "it is 0 or more", is_number)

    def __call__(
        self,
        model: PreTrainedModel,
        prompts: Sequence[Prompt],
        kvs: Sequence[KV],
        rows: Sequence[Tensor] | None,
        ratio: float | None,
    ) -> list[Correction]:
        if rows is None and ratio is None:
            raise BadInput("ratio is None: agent_kv_shift needs a share of every passage, or a selector")
        passes = [self.passes(model, prompt) for prompt in prompts]
        truths = exact(model, prompts, self.layer + 1)
        chosen: Sequence[Tensor | None] = rows or [None] * len(prompts)
        return [self._one(*each, ratio or 0.0) for each in zip(prompts, kvs, truths, chosen, passes, strict=True)]

    def passes(self, model: PreTrainedModel, prompt: Prompt) -> tuple[Pass, ...]:
        return context_pass(model, prompt, self.layer + 1)

    def _one(
        self, prompt: Prompt, kv: KV, truth: KV, rows: Tensor | None, passes: tuple[Pass, ...], ratio: float
    ) -> Correction:
        distances = [gap(kv, truth, self.layer, part).sqrt() for part in ("k", "v")]
        probes = [self._probes(distance, prompt, ratio) if rows is None else rows for distance in distances]
        computed = torch.cat(probes).unique()
        if not len(computed):
            return Correction(computed, passes=passes)
        write(kv, truth, self.layer + 1)
        parts = zip((kv.keys, kv.values), probes, distances, strict=True)
        shifts = [self._shift(prompt, layers, own, far, computed) for layers, own, far in parts]

        def adjust(layer: int, keys: Tensor, values: Tensor) -> None:
            if layer > self.layer:
                for shift, cached in zip(shifts, (keys, values), strict=True):
                    shift(layer, cached)

        return Correction(computed, adjust, passes)

    def _probes(self, distance: Tensor, prompt: Prompt, ratio: float) -> Tensor:
        found = [distance.new_zeros(0, dtype=torch.int64)]
        for begin, end in pairwise(prompt.starts[self.system :]):
            largest = distance[begin:end].sort(descending=True, stable=True).indices[: ceil(ratio * (end - begin))]
            found.append(begin + largest)
        return torch.cat(found).cpu()

    def _shift(
        self, prompt: Prompt, layers: list[Tensor], probes: Tensor, distance: Tensor, computed: Tensor
    ) -> Callable[[int, Tensor], None]:
        """Return a function that shifts a layer's other keys (or values) by the mean change of their block's probes."""
        where, blocks = layers[0].device, len(prompt.context)
        stays = torch.ones(prompt.starts[-1], dtype=torch.bool)
        stays[: prompt.starts[min(self.system, blocks)]] = stays[computed] = False
        others, of, probes = stays.nonzero()[:, 0].to(where), prompt.block_of.to(where), probes.to(where)
        weight = distance.to(where).clamp(max=self.cap)[others, None]
        stale = [layer[:, probes].clone() for layer in layers]
        count = torch.bincount(of[probes], minlength=blocks).clamp(min=1)[:, None]

        def move(layer: int, cached: Tensor) -> None:
            moved = cached[:, probes].float() - stale[layer].float()
            total = moved.new_zeros(len(moved), blocks, moved.shape[-1]).index_add_(1, of[probes], moved)
            shifted = cached[:, others].float() + weight * (total / count)[:, of[others]]
            cached[:, others] = shifted.to(cached.dtype)

        return move
