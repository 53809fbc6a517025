"""Correct a passage by the KV offsets that similar passages had in earlier requests (KVCOMM, arXiv:2510.12872)."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import PreTrainedModel

from workbench.engine.full_context import context_pass, exact, write
from workbench.engine.pages.block_pages import BlockPages
from workbench.engine.pages.paged_prompt import Cached
from workbench.kernels._anchors.in_torch import InTorch
from workbench.methods import registry
from workbench.methods.correct import KV, Correct, Correction, Prompt
from workbench.methods.correct._anchors import (
    Anchor,
    compare_places,
    copy_places,
    count_used,
    in_pages,
    keep,
    kernels,
    usable_anchors,
)
from workbench.methods.registry import integer_option
from workbench.models.spec import ModelSpec, attach

NOTHING = torch.tensor([], dtype=torch.int64)


@dataclass(frozen=True)
class Kvcomm(Correct):
    r"""Keep anchors for every place of a prompt, and add the similarity-weighted mean of their offsets to a passage.

    most         maximum number of anchors per place; 0: no correction
    threshold    a prompt is computed in full, and its passages become anchors, if the entropy of the similarities of
                 one of them exceeds this share of the largest possible entropy
    temperature  of the weights by which offsets are averaged, token by token

    An anchor is at least as long as the passage that it corrects. Anchors are stored in this object, so the order of
    requests matters. A prompt with fewer than two such anchors in a place is computed in full. Cached KV of layer 0 is
    exact.

    *Follows released code: `KVCOMM/llm/kvcomm_engine.py` of FastMAS/KVCOMM, for passages instead of agents' messages.*
    On a GPU, passages are compared in their pages, and corrected passages are cached in separate pages. The charged
    share counts computed tokens only, but all keys and values of the anchors are read as well: a prompt of passages
    that are new to their places takes twice the time of plain reuse (`data/benchmarks/notes.md`).

    With the cached $x$ of a passage, and the cached $x^a$ and offset $\Delta^a$ of anchor $a$ ($x$ keys, or values):

    $$w_t^a \propto \exp(-\overline{|x_t - x_t^a|} / \tau), \qquad x_t \leftarrow x_t + \sum_a w_t^a \Delta_t^a$$
    """

    IN_FULL = (
        "each had a passage too unlike those before it in its place; "
        "over many questions --correct 'kvcomm(threshold=0.7)' reuses more"
    )

    most: int = integer_option(20, "how many anchors a place keeps, 0 or more")
    threshold: float = registry.share(0.3)
    temperature: float = registry.positive(1.0)
    anchors: dict[int, list[Anchor]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __call__(
        self,
        model: PreTrainedModel,
        prompts: Sequence[Prompt],
        kvs: Sequence[KV],
        rows: Sequence[Tensor] | None,
        ratio: float | None,
    ) -> list[Correction]:
        chosen = rows or [NOTHING] * len(prompts)
        spec = attach(model)
        return [self._one(model, spec, *each) for each in zip(prompts, kvs, chosen, strict=True)]

    def _one(self, model: PreTrainedModel, spec: ModelSpec, prompt: Prompt, kv: KV, rows: Tensor) -> Correction:
        starts, lengths = self._stretch(prompt)
        usable = usable_anchors(self, lengths)
        if not usable:
            return Correction(rows)
        if any(usable):
            meeting_of = kernels(spec, kv.keys, kv.values) or InTorch
            meeting = meeting_of(kv.keys, kv.values, starts, lengths, usable, spec.inv_freq, spec.pairing)
            compared = compare_places(meeting.token_distances(), lengths, usable, self.threshold, self.temperature)
            count_used(usable, (each.used for each in compared))
            if all(each.near for each in compared):
                meeting.move(torch.cat([each.weights for each in compared], 2))
                kv.mark_changed()
                return Correction(rows)
        before, (truth,) = copy_places(spec, kv, starts, lengths), exact(model, [prompt], spec.layers)
        write(kv, truth, spec.layers)
        for place, (stale, fresh) in enumerate(
            zip(before, copy_places(spec, kv, starts, lengths), strict=True), self.system
        ):
            cached = stale[0].clone(), stale[1].clone()  # copies: views would keep the whole prompt alive
            new = Anchor(cached, (fresh[0] - stale[0], fresh[1] - stale[1]))
            keep(self.anchors.setdefault(place, []), new, self.most)
        return Correction(NOTHING, passes=context_pass(model, prompt, spec.layers), computed=prompt.starts[-1])

    def over_pages(self, blocks: BlockPages, prompt: Prompt, context: list[Cached]) -> bool:
        """Replace cached passages by corrected ones; return False if that needs an assembled cache.

        A corrected passage stays cached for requests that have it in a place with the same anchors.
        """
        starts, lengths = self._stretch(prompt)
        usable, stale = usable_anchors(self, lengths), context[self.system :]
        if not usable:
            return True
        corrected = in_pages(self, blocks, context, starts, usable) if all(usable) else None
        if corrected is None:
            return False
        count_used(usable, (each.used for each in corrected))
        context[self.system :] = [each.block for each in corrected]
        blocks.unpin(stale)
        return True

    def _stretch(self, prompt: Prompt) -> tuple[list[int], list[int]]:
        """Return the starts and lengths of the places."""
        return [*prompt.starts[self.system : -1]], [len(block) for block in prompt.context[self.system :]]
