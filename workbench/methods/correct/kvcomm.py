"""A passage moves as similar passages moved in earlier requests (KVCOMM, arXiv:2510.12872)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from workbench.engine.attention_backends import choice
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
    On pages the corrected cache is copied: every layer of it is written. Its charged share counts tokens that are
    computed; a request reads all cached keys and values of its own and of the anchors besides, so it takes longer.

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
        places = range(self.system, len(prompt.context))
        if not self.most or not places:
            return Correction(rows)
        lengths = [len(prompt.context[place]) for place in places]
        held = [self._held(*pair) for pair in zip(places, lengths, strict=True)]
        if any(held) and self._met(spec, kv, prompt, places, lengths, held):
            return Correction(rows)
        before, (truth,) = _cut(spec, kv, prompt, places), exact(model, [prompt], spec.layers)
        write(kv, truth, spec.layers)
        for place, stale, fresh in zip(places, before, _cut(spec, kv, prompt, places), strict=True):
            cached = stale[0].clone(), stale[1].clone()  # not the whole prompt that they are parts of
            moved = (fresh[0] - stale[0]).contiguous(), (fresh[1] - stale[1]).contiguous()
            self._keep(self.anchors.setdefault(place, []), Anchor(cached, moved))
        return Correction(NOTHING, passes=context_pass(prompt, spec.layers), computed=prompt.starts[-1])

    def _held(self, place: int, count: int) -> list[Anchor]:
        """Return the anchors of a place that hold as many tokens; none where there is one alone."""
        held = [anchor for anchor in self.anchors.get(place, []) if anchor.cached[1].shape[1] >= count]
        return held if len(held) > 1 else []

    def _met(
        self,
        spec: ModelSpec,
        kv: KV,
        prompt: Prompt,
        places: range,
        lengths: Sequence[int],
        held: Sequence[Sequence[Anchor]],
    ) -> bool:
        """Move all passages where each has near anchors; return whether they have."""
        starts, pairs = (
            prompt.starts[places[0] : places[-1] + 1],
            [[(a.cached, a.moved) for a in each] for each in held],
        )
        given = kv.keys, kv.values, starts, lengths, pairs, spec.inv_freq, spec.pairing
        meeting: Any = InTorch(*given)
        if choice.on_gpu(spec.device) and (module := choice.kernel("_anchors.meeting")).fits(
            kv.keys, kv.values, spec.inv_freq
        ):
            meeting = module.Meeting(*given)
        far = meeting.far()
        squares = far[2].cpu().split(lengths, 1)  # a GPU is waited for once
        if not self._alike(held, torch.stack([part.sum(1) for part in squares]).sqrt()):
            return False
        meeting.move((-far[:2] / self.temperature).softmax(1))
        kv.changed()
        return True

    def _alike(self, held: Sequence[Sequence[Anchor]], far: Tensor) -> bool:
        """Return whether one of the anchors of every place is near, by `far` [P, A]; used ones are counted as such."""
        alike = (-far).softmax(1)
        entropy = -(alike * (alike + 1e-40).log2()).sum(1)
        near = entropy <= self.threshold * torch.tensor([*map(len, held)]).float().log2()  # without anchors it is nan
        order = alike.sort(1, descending=True)
        used = near[:, None] & (order.values.cumsum(1) - order.values < NUCLEUS)
        for place, number in torch.stack((torch.arange(len(far))[:, None].expand_as(used), order.indices), 2)[
            used
        ].tolist():
            held[place][number].used += 1
        return bool(near.all())

    def _keep(self, anchors: list[Anchor], new: Anchor) -> None:
        if len(anchors) >= self.most:
            anchors.remove(min(anchors[:OLDEST], key=lambda anchor: anchor.used))
        anchors.append(new)


def _cut(spec: ModelSpec, kv: KV, prompt: Prompt, places: range) -> list[Pair]:
    """Return blocks of a prompt as `stretch` copies them."""
    lengths = [len(prompt.context[place]) for place in places]
    starts = prompt.starts[places[0] : places[-1] + 1]
    parts = stretch(kv.keys, kv.values, starts, lengths, spec.inv_freq, spec.pairing)
    return list(zip(*(x.split(lengths, 1) for x in parts), strict=True))
