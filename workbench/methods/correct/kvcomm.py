"""A passage moves as similar passages moved in earlier requests (KVCOMM, arXiv:2510.12872)."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.linalg import vector_norm
from transformers import PreTrainedModel

from workbench.core.rope import rotate_layers
from workbench.methods import registry
from workbench.methods.correct import KV, Correct, Correction, Prompt, write
from workbench.methods.registry import whole
from workbench.methods.select import context_pass, exact
from workbench.models.spec import ModelSpec, attach

NOTHING = torch.tensor([], dtype=torch.int64)
OLDEST = 5  # of these anchors the one that was used least makes room (released code)
NUCLEUS = 0.9  # anchors of so much weight count as used (released code)


Pair = tuple[Tensor, Tensor]  # keys as of position 0, values: [heads of all layers, T, D]


@dataclass(eq=False)
class Anchor:
    """A passage as cached, with how full attention moved it; in the numbers of the model."""

    cached: Pair
    moved: Pair
    used: int = 0


Near = tuple[Anchor, Tensor]  # how far a passage's values are from the anchor's, token by token [T]


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
        cached = _cut(spec, kv, prompt, places)
        near = self._near(places, cached)
        if all(near):
            self._move(spec, kv, prompt, places, cached, near)
            return Correction(rows)
        (truth,) = exact(model, [prompt], spec.layers)
        write(kv, truth, spec.layers)
        for place, before, after in zip(places, cached, _cut(spec, kv, prompt, places), strict=True):
            moved = after[0] - before[0], after[1] - before[1]
            kept = before[0].clone(), before[1].clone()  # not the whole prompt that they are parts of
            self._keep(self.anchors.setdefault(place, []), Anchor(kept, moved))
        return Correction(NOTHING, passes=context_pass(prompt, spec.layers), computed=prompt.starts[-1])

    def _near(self, places: range, cached: Sequence[Pair]) -> list[list[Near]]:
        """Return a place's anchors that hold as many tokens; none where they are fewer than two, or none is near."""
        known, far = list[list[Near]](), list[Tensor]()
        for place, (_, values) in zip(places, cached, strict=True):
            count = values.shape[1]
            held = [anchor for anchor in self.anchors.get(place, []) if anchor.cached[1].shape[1] >= count]
            known.append([])
            for anchor in held if len(held) > 1 else ():
                apart = values - anchor.cached[1][:, :count]
                far.append(vector_norm(apart, dtype=torch.float32))
                known[-1].append((anchor, _mean(apart)))
        each = torch.stack(far).cpu().split(list(map(len, known))) if far else ()  # a GPU is waited for once
        return [self._alike(*pair) for pair in zip(known, each, strict=True)] if far else known

    def _alike(self, known: list[Near], far: Tensor) -> list[Near]:
        """Return the anchors of a place where one is near, and count them as used."""
        alike = (-far).softmax(0)
        entropy = -(alike * (alike + 1e-40).log2()).sum()
        if entropy > self.threshold * torch.tensor(float(len(known))).log2():
            return []
        order = alike.sort(descending=True)
        for index, before in zip(order.indices.tolist(), (order.values.cumsum(0) - order.values).tolist(), strict=True):
            known[index][0].used += before < NUCLEUS
        return known

    def _move(
        self,
        spec: ModelSpec,
        kv: KV,
        prompt: Prompt,
        places: range,
        cached: Sequence[Pair],
        near: Sequence[Sequence[Near]],
    ) -> None:
        """Add the joined offsets to all passages, from layer 1 on."""
        heads, at = [count for count, _ in spec.shapes], _standing(prompt, places)
        keys, values = (
            torch.cat([self._offset(part, *pair) for pair in zip(cached, near, strict=True)], 1).split(heads)
            for part in (0, 1)
        )
        turned = list(rotate_layers(keys, at, spec.inv_freq, spec.pairing))
        for mine, offsets in ((kv.keys, turned), (kv.values, values)):
            for layer in range(1, spec.layers):
                mine[layer][:, prompt.starts[self.system] : prompt.starts[-1]] += offsets[layer].to(spec.dtype)
        kv.changed()

    def _offset(self, part: int, passage: Pair, near: Sequence[Near]) -> Tensor:
        """Return the mean offset of the tokens of a passage, of its keys or values, weighed by how alike they are."""
        mine, count = passage[part], passage[part].shape[1]
        far = [known if part else _mean(mine - anchor.cached[0][:, :count]) for anchor, known in near]
        weights = (-torch.stack(far) / self.temperature).softmax(0)[..., None]
        offset = torch.zeros_like(mine, dtype=torch.float32)
        for weight, (anchor, _) in zip(weights, near, strict=True):
            offset.addcmul_(weight, anchor.moved[part][:, :count])
        return offset

    def _keep(self, anchors: list[Anchor], new: Anchor) -> None:
        if len(anchors) >= self.most:
            anchors.remove(min(anchors[:OLDEST], key=lambda anchor: anchor.used))
        anchors.append(new)


def _mean(apart: Tensor) -> Tensor:
    """[T] mean of the absolute differences of every token."""
    return vector_norm(apart, 1, (0, 2), dtype=torch.float32) / (apart.numel() // apart.shape[1])


def _standing(prompt: Prompt, places: range) -> Tensor:
    """Return where the block of every token of these places begins [T]."""
    starts = torch.tensor([prompt.starts[place] for place in places])
    return starts.repeat_interleave(torch.tensor([len(prompt.context[place]) for place in places]))


def _cut(spec: ModelSpec, kv: KV, prompt: Prompt, places: range) -> list[Pair]:
    """Copy blocks of a prompt, keys rotated as if each stood at position 0: all in one rotation a layer."""
    here = slice(prompt.starts[places[0]], prompt.starts[-1])
    lengths = [len(prompt.context[place]) for place in places]
    stale = [layer[:, here] for layer in kv.keys]
    keys = torch.cat(list(rotate_layers(stale, -_standing(prompt, places), spec.inv_freq, spec.pairing)))
    values = torch.cat([layer[:, here] for layer in kv.values])
    return list(zip(keys.split(lengths, 1), values.split(lengths, 1), strict=True))
