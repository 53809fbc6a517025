"""A passage moves as similar passages moved in earlier requests (KVCOMM, arXiv:2510.12872)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import compress, count
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
    number: int = field(default_factory=count().__next__)  # no other anchor's


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
        held, (starts, lengths) = self._held(prompt), self._stretch(prompt)
        if not held:
            return Correction(rows)
        if any(held):
            meet = _kernels(spec, kv.keys, kv.values) or InTorch
            meeting = meet(kv.keys, kv.values, starts, lengths, _pairs(held), spec.inv_freq, spec.pairing)
            far = meeting.far()
            if self._moved(meeting, held, far, _squares(far, lengths)):
                kv.changed()
                return Correction(rows)
        before, (truth,) = self._cut(spec, kv, prompt), exact(model, [prompt], spec.layers)
        write(kv, truth, spec.layers)
        for place, (stale, fresh) in enumerate(zip(before, self._cut(spec, kv, prompt), strict=True), self.system):
            cached = stale[0].clone(), stale[1].clone()  # not the whole prompt that they are parts of
            moved = (fresh[0] - stale[0]).contiguous(), (fresh[1] - stale[1]).contiguous()
            self._keep(self.anchors.setdefault(place, []), Anchor(cached, moved))
        return Correction(NOTHING, passes=context_pass(model, prompt, spec.layers), computed=prompt.starts[-1])

    def over_pages(self, blocks: BlockPages, prompt: Prompt, context: list[Cached]) -> bool:
        """Put passages as they are corrected into pages of their own; False where it takes an assembled cache.

        What was compared with the anchors of its place before is not compared again.
        """
        pool, held, (starts, lengths) = blocks.pool, self._held(prompt), self._stretch(prompt)
        if not held:
            return True
        meet = _kernels(pool.spec, pool.keys, pool.values)
        if not any(held) or meet is None:
            return False
        stale, most = context[self.system :], max(map(len, held))
        context.append(blocks.blank(sum(lengths), starts[0]))
        paged = [block.start for block in stale], pool.slots(*stale), pool.slots(context[-1])
        met = [(most, *[anchor.number for anchor in each]) for each in held]
        new = [stale[place].derived.get((Kvcomm, place), ((),))[0] != each for place, each in enumerate(met)]
        given = pool.keys, pool.values, starts, lengths, _pairs(held), pool.spec.inv_freq, pool.pairing
        with pool.in_order():
            meeting = meet(*given, paged, new)
            if any(new):
                far = meeting.far()
                found = zip(met, far.split(lengths, 2), _squares(far, lengths), strict=True)
                for place, each in compress(enumerate(found), new):
                    stale[place].derived[Kvcomm, place] = each
            _, *parts = zip(*[block.derived[Kvcomm, place] for place, block in enumerate(stale)], strict=True)
            far, squares = torch.cat(parts[0], 2), torch.stack(parts[1])
            if not self._moved(meeting, held, far, squares, again=True):
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
        held = [[anchor for anchor in each if anchor.cached[1].shape[1] >= least] for each, least in kept]
        return [each if len(each) > 1 else [] for each in held]

    def _stretch(self, prompt: Prompt) -> tuple[list[int], list[int]]:
        """Return starts and lengths of the places."""
        return [*prompt.starts[self.system : -1]], [len(block) for block in prompt.context[self.system :]]

    def _moved(self, meeting: Any, held: list[list[Anchor]], far: Tensor, squares: Tensor, again: bool = False) -> bool:
        """Move all passages where each has near anchors, by `far` [3, A, N] and `squares` [P, A]; return whether.

        Used anchors are counted as such, unless the caller asks `again` where passages have none.
        """
        near, used = self._alike(held, squares.sqrt())
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
    """Return the `Meeting` that compares and moves places by kernels; None where torch does."""
    module = choice.kernel("_anchors.meeting") if choice.on_gpu(spec.device) else None
    return module.Meeting if module is not None and module.fits(keys, values, spec.inv_freq) else None


def _pairs(held: list[list[Anchor]]) -> list[list[tuple[Pair, Pair]]]:
    return [[(anchor.cached, anchor.moved) for anchor in each] for each in held]


def _squares(far: Tensor, lengths: list[int]) -> Tensor:
    """Return [P, A] of every place, on the CPU: a GPU is waited for."""
    return torch.stack([part.sum(1) for part in far[2].cpu().split(lengths, 1)])
