"""A passage moves as similar passages moved in earlier requests (KVCOMM, arXiv:2510.12872)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from workbench.engine.attention_backends import choice
from workbench.engine.pages.block_pages import BlockPages
from workbench.engine.pages.paged_prompt import Cached
from workbench.kernels._anchors.in_torch import InTorch, Pair, stretch
from workbench.methods import registry
from workbench.methods.correct import KV, Correct, Correction, Prompt, write
from workbench.methods.registry import whole
from workbench.methods.select import context_pass, exact
from workbench.models.spec import ModelSpec, attach

NOTHING = torch.tensor([], dtype=torch.int64)
OLDEST = 5  # of these anchors the one that was used least makes room (released code)
NUCLEUS = 0.9  # anchors of so much weight count as used (released code)


@dataclass(eq=False)
class Anchor:
    """A passage as cached, with how full attention moved it; in the numbers of the model."""

    cached: Pair
    moved: Pair
    used: int = 0


@dataclass(frozen=True)
class Kvcomm(Correct):
    r"""Every place of a prompt keeps anchors; a passage there gets the mean of their offsets, by how alike they are.

    most         anchors of a place that are kept; 0: nothing is ever corrected
    threshold    a prompt is computed in full, and its passages become anchors, where the entropy of the likeness of
                 one of them is above this share of the largest
    temperature  of the weights by which offsets are joined, token by token

    An anchor is at least as long as what it corrects, and lives with this object: requests are answered in order. A
    prompt whose place has fewer than two such anchors is computed in full. Layer 0 is exact as cached.

    *Follows released code: `KVCOMM/llm/kvcomm_engine.py` of FastMAS/KVCOMM, for passages in place of agents' messages.*
    On pages of a GPU passages are compared where they are cached, and written once, as corrected, to a request's own.
    Its charged share counts tokens that are computed; all keys and values of the anchors are read besides.

    With stale $x$ of a passage and $x^a$, $\Delta^a$ cached and moved of anchor $a$ ($x$ keys, or values):

    $$w_t^a \propto \exp(-\overline{|x_t - x_t^a|} / \tau), \qquad x_t \leftarrow x_t + \sum_a w_t^a \Delta_t^a$$
    """

    most: int = whole(20, "how many anchors a place keeps, 0 or more")
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
        held = self._held(prompt)
        if not held:
            return Correction(rows)
        given, kernels = self._given(spec, kv.keys, kv.values, prompt, held), _kernels(spec, kv.keys, kv.values)
        if any(held) and self._moved((kernels.Meeting if kernels else InTorch)(*given), prompt, held):
            kv.changed()
            return Correction(rows)
        before, (truth,) = self._cut(spec, kv, prompt), exact(model, [prompt], spec.layers)
        write(kv, truth, spec.layers)
        for place, (stale, fresh) in enumerate(zip(before, self._cut(spec, kv, prompt), strict=True), self.system):
            cached = stale[0].clone(), stale[1].clone()  # not the whole prompt that they are parts of
            moved = (fresh[0] - stale[0]).contiguous(), (fresh[1] - stale[1]).contiguous()
            self._keep(self.anchors.setdefault(place, []), Anchor(cached, moved))
        return Correction(NOTHING, passes=context_pass(prompt, spec.layers), computed=prompt.starts[-1])

    def over_pages(self, blocks: BlockPages, prompt: Prompt, context: list[Cached]) -> bool:
        """Put passages as they are corrected into pages of their own; False where it takes an assembled cache."""
        pool, held, stale = blocks.pool, self._held(prompt), context[self.system :]
        if not held:
            return True
        kernels = _kernels(pool.spec, pool.keys, pool.values)
        if not any(held) or kernels is None:
            return False
        context.append(blocks.blank(sum(map(len, stale)), prompt.starts[self.system]))
        paged = [block.start for block in stale], pool.slots(*stale), pool.slots(context[-1])
        with pool.in_order():
            meeting = kernels.Meeting(*self._given(pool.spec, pool.keys, pool.values, prompt, held), paged)
            if not self._moved(meeting, prompt, held, again=True):
                return False
        del context[self.system : -1]
        blocks.unpin(stale)
        return True

    def _held(self, prompt: Prompt) -> list[list[Anchor]]:
        """Return the anchors of each place that hold as many tokens; none of a place where there is one alone.

        Nothing where nothing is ever corrected.
        """
        places = range(self.system, len(prompt.context)) if self.most else ()
        kept = [(self.anchors.get(place, []), len(prompt.context[place])) for place in places]
        held = [[anchor for anchor in each if anchor.cached[1].shape[1] >= count] for each, count in kept]
        return [each if len(each) > 1 else [] for each in held]

    def _given(
        self, spec: ModelSpec, keys: list[Tensor], values: list[Tensor], prompt: Prompt, held: list[list[Anchor]]
    ) -> tuple[Any, ...]:
        """Return what `InTorch` and `Meeting` take."""
        pairs = [[(anchor.cached, anchor.moved) for anchor in each] for each in held]
        return keys, values, *self._stretch(prompt), pairs, spec.inv_freq, spec.pairing

    def _stretch(self, prompt: Prompt) -> tuple[list[int], list[int]]:
        """Return starts and lengths of the places."""
        return [*prompt.starts[self.system : -1]], [len(block) for block in prompt.context[self.system :]]

    def _moved(self, meeting: Any, prompt: Prompt, held: list[list[Anchor]], again: bool = False) -> bool:
        """Move all passages where each has near anchors; return whether they have.

        Used anchors are counted as such, unless the caller asks `again` where passages have none.
        """
        far = meeting.far()
        squares = far[2].cpu().split(self._stretch(prompt)[1], 1)  # a GPU is waited for once
        near, used = self._alike(held, torch.stack([part.sum(1) for part in squares]).sqrt())
        if near:
            meeting.move((-far[:2] / self.temperature).softmax(1))
        for anchor in used if near or not again else ():
            anchor.used += 1
        return near

    def _alike(self, held: Sequence[Sequence[Anchor]], far: Tensor) -> tuple[bool, list[Anchor]]:
        """Return whether every place has near anchors, by `far` [P, A], and those that are used."""
        alike = (-far).softmax(1)
        entropy = -(alike * (alike + 1e-40).log2()).sum(1)
        near = entropy <= self.threshold * torch.tensor([*map(len, held)]).float().log2()  # without anchors it is nan
        order = alike.sort(1, descending=True)
        used = near[:, None] & (order.values.cumsum(1) - order.values < NUCLEUS)
        numbers = zip(used.nonzero()[:, 0].tolist(), order.indices[used].tolist(), strict=True)
        return bool(near.all()), [held[place][number] for place, number in numbers]

    def _keep(self, anchors: list[Anchor], new: Anchor) -> None:
        if len(anchors) >= self.most:
            anchors.remove(min(anchors[:OLDEST], key=lambda anchor: anchor.used))
        anchors.append(new)

    def _cut(self, spec: ModelSpec, kv: KV, prompt: Prompt) -> list[Pair]:
        """Return the places of a prompt as `stretch` copies them."""
        starts, lengths = self._stretch(prompt)
        parts = stretch(kv.keys, kv.values, starts, lengths, spec.inv_freq, spec.pairing)
        return list(zip(*(x.split(lengths, 1) for x in parts), strict=True))


def _kernels(spec: ModelSpec, keys: list[Tensor], values: list[Tensor]) -> Any:
    """Return the module whose kernels compare and move places; None where torch does."""
    module = choice.kernel("_anchors.meeting") if choice.on_gpu(spec.device) else None
    return module if module is not None and module.fits(keys, values, spec.inv_freq) else None
