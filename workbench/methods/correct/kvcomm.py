"""A passage moves as similar passages moved in earlier requests (KVCOMM, arXiv:2510.12872)."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import PreTrainedModel

from workbench.core.rope import rotate
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
    """A passage as cached, with how full attention moved it: keys, values [L][H, T, D], keys as of position 0."""

    cached: KV
    moved: KV
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
        cached = [_cut(spec, kv, prompt, place) for place in places]
        near = [self._near(place, passage) for place, passage in zip(places, cached, strict=True)]
        if all(near):
            for place, passage, alike in zip(places, cached, near, strict=True):
                self._move(spec, kv, prompt.starts[place], passage, alike)
            kv.changed()
            return Correction(rows)
        (truth,) = exact(model, [prompt], spec.layers)
        write(kv, truth, spec.layers)
        for place, before in zip(places, cached, strict=True):
            after = _cut(spec, kv, prompt, place)
            keys = [x - y for x, y in zip(after.keys, before.keys, strict=True)]
            moved = KV(keys, [x - y for x, y in zip(after.values, before.values, strict=True)])
            self._keep(self.anchors.setdefault(place, []), Anchor(before, moved))
        return Correction(NOTHING, passes=context_pass(prompt, spec.layers), computed=prompt.starts[-1])

    def _near(self, place: int, passage: KV) -> list[Anchor]:
        """Return the anchors that hold as many tokens; none where they are fewer than two, or none is near."""
        count = len(passage)
        known = [anchor for anchor in self.anchors.get(place, []) if len(anchor.cached) >= count]
        if len(known) < 2:
            return []
        far = []
        for anchor in known:
            pairs = zip(passage.values, anchor.cached.values, strict=True)
            far.append(torch.stack([(x - y[:, :count]).square().sum() for x, y in pairs]).sum())
        alike = (-torch.stack(far).sqrt()).softmax(0).cpu()  # a GPU is waited for once
        entropy = -(alike * (alike + 1e-40).log2()).sum()
        if entropy > self.threshold * torch.tensor(float(len(known))).log2():
            return []
        order = alike.sort(descending=True)
        for index, before in zip(order.indices.tolist(), (order.values.cumsum(0) - order.values).tolist(), strict=True):
            known[index].used += before < NUCLEUS
        return known

    def _move(self, spec: ModelSpec, kv: KV, start: int, passage: KV, anchors: Sequence[Anchor]) -> None:
        """Add the joined offsets to the passage that begins at `start`, from layer 1 on."""
        here, count = slice(start, start + len(passage)), len(passage)
        for name, part in (("keys", kv.keys), ("values", kv.values)):
            far = torch.stack([_far(getattr(passage, name), getattr(anchor.cached, name)) for anchor in anchors])
            weights = (-far / self.temperature).softmax(0)
            for layer in range(1, spec.layers):
                offsets = torch.stack([getattr(anchor.moved, name)[layer][:, :count] for anchor in anchors])
                offset = (weights[:, None, :, None] * offsets).sum(0)
                if name == "keys":
                    offset = rotate(offset, start, spec.inv_freq[layer], spec.pairing)
                part[layer][:, here] += offset.to(part[layer].dtype)

    def _keep(self, anchors: list[Anchor], new: Anchor) -> None:
        if len(anchors) >= self.most:
            anchors.remove(min(anchors[:OLDEST], key=lambda anchor: anchor.used))
        anchors.append(new)


def _cut(spec: ModelSpec, kv: KV, prompt: Prompt, place: int) -> KV:
    """Copy a block of a prompt in fp32, its keys rotated as if it stood at position 0."""
    begin, end = prompt.starts[place : place + 2]
    tables = zip(kv.keys, spec.inv_freq, strict=True)
    keys = [rotate(layer[:, begin:end].float(), -begin, table, spec.pairing) for layer, table in tables]
    return KV(keys, [layer[:, begin:end].to(torch.float32, copy=True) for layer in kv.values])


def _far(mine: Sequence[Tensor], theirs: Sequence[Tensor]) -> Tensor:
    """Return the mean absolute difference of every token [T], over layers, heads and channels."""
    each = [(x - y[:, : x.shape[1]]).abs().mean((0, 2)) for x, y in zip(mine, theirs, strict=True)]
    return torch.stack(each).mean(0)
