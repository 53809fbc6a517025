"""KVCOMM's anchors: passages of earlier requests by their place in the prompt, compared with new passages."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol

import torch
from torch import Tensor

from workbench.core.kv import KV
from workbench.engine.attention_backends import choice
from workbench.engine.pages.block_pages import BlockPages
from workbench.engine.pages.paged_prompt import Cached
from workbench.kernels._anchors.in_torch import Pair, stretch
from workbench.models.spec import ModelSpec

OLDEST = 5  # the least used of the OLDEST oldest anchors is evicted (released code)
NUCLEUS = 0.9  # cumulative weight of the nearest anchors, which count as used (released code)


@dataclass(eq=False)
class Anchor:
    """A cached passage and its offsets to full attention, [C, length, D] each, in the model's dtype."""

    cached: Pair
    moved: Pair
    used: int = 0
    number: int = field(default_factory=count().__next__)  # unique
    length: int = field(init=False)
    row: tuple[int, ...] = field(init=False, repr=False)  # addresses of its tensors, and their head stride

    def __post_init__(self) -> None:
        four = [x.contiguous() for x in (*self.cached, *self.moved)]
        self.cached, self.moved = (four[0], four[1]), (four[2], four[3])
        self.length, self.row = four[0].shape[1], (*(x.data_ptr() for x in four), four[0].stride(0))


@dataclass(frozen=True, eq=False)
class CorrectedPassage:
    """A corrected passage: its `block` in pages, the numbers of its `anchors`, and the indices of those it used."""

    anchors: list[int]
    used: Sequence[int]
    block: Cached


@dataclass(frozen=True, eq=False)
class AnchorMatch:
    """The comparison of a passage with the anchors of its place.

    weights  [2, A, n] fp32 for keys and values, by which offsets are averaged
    near     whether it is near some anchors, instead of equally far from all
    used     indices of the anchors that it is near
    """

    weights: Tensor
    near: bool
    used: Sequence[int]


class Rule(Protocol):
    """The fields of `Kvcomm`: `most` anchors per place, and the parameters of the comparison."""

    @property
    def most(self) -> int: ...
    @property
    def anchors(self) -> dict[int, list[Anchor]]: ...
    @property
    def threshold(self) -> float: ...
    @property
    def temperature(self) -> float: ...
    @property
    def system(self) -> int: ...


def usable_anchors(rule: Rule, lengths: list[int]) -> list[list[Anchor]]:
    """Return the usable anchors of each place: at least two, each at least as long as the passage; else none.

    Returns [] if `most` is 0, which turns corrections off.
    """
    kept = [rule.anchors.get(place, []) for place, _ in enumerate(lengths, rule.system)] if rule.most else []
    usable = [[anchor for anchor in each if anchor.length >= n] for each, n in zip(kept, lengths, strict=False)]
    return [each if len(each) > 1 else [] for each in usable]


def compare_places(
    far: Tensor, lengths: list[int], usable: list[list[Anchor]], threshold: float, temperature: float
) -> list[AnchorMatch]:
    """Compare passages with anchors by the distances `far` [3, A, N] of their tokens. Synchronizes with the GPU."""
    weights = (-far[:2] / temperature).softmax(1).split(lengths, 2)
    squares = torch.stack([part.sum(1) for part in far[2].cpu().split(lengths, 1)])
    similarity = (-squares.sqrt()).softmax(1)
    entropy = -(similarity * (similarity + 1e-40).log2()).sum(1)
    near = (entropy <= threshold * torch.tensor([*map(len, usable)]).float().log2()).tolist()  # nan without anchors
    order = similarity.sort(1, descending=True)
    used = order.values.cumsum(1) - order.values < NUCLEUS
    some = [best[taken].tolist() if each else [] for best, taken, each in zip(order.indices, used, near, strict=True)]
    return [AnchorMatch(*one) for one in zip(weights, near, some, strict=True)]


def keep(anchors: list[Anchor], new: Anchor, most: int) -> None:
    """Add an anchor to those of a place; evict one if there are `most` already."""
    if len(anchors) >= most:
        anchors.remove(min(anchors[:OLDEST], key=lambda anchor: anchor.used))
    anchors.append(new)


def count_used(usable: list[list[Anchor]], used: Iterable[Sequence[int]]) -> None:
    """Increment the use counts of anchors."""
    for anchors, some in zip(usable, used, strict=True):
        for number in some:
            anchors[number].used += 1


def copy_places(spec: ModelSpec, kv: KV, starts: list[int], lengths: list[int]) -> list[Pair]:
    """Copy places out of a cache, with keys rotated as if each place started at position 0."""
    parts = stretch(kv.keys, kv.values, starts, lengths, spec.inv_freq, spec.pairing)
    return list(zip(*(x.split(lengths, 1) for x in parts), strict=True))


def kernels(spec: ModelSpec, keys: list[Tensor], values: list[Tensor]) -> Any:
    """Return the class `AnchorComparison`, whose kernels compare and correct places; None if torch is used instead."""
    module = choice.kernel("_anchors.meeting") if choice.on_gpu(spec.device) else None
    return module.AnchorComparison if module is not None and module.fits(keys, values, spec.inv_freq) else None


def in_pages(
    rule: Rule, blocks: BlockPages, context: list[Cached], starts: Sequence[int], usable: Sequence[list[Anchor]]
) -> list[CorrectedPassage] | None:
    """Return corrected blocks for the places, cached or new; None without kernels, or if a passage is near no anchor.

    Every block that is pinned here is added to `context`.
    """
    pool, stale, owner = blocks.pool, context[rule.system :], id(rule.anchors)
    meeting_of, numbers = kernels(pool.spec, pool.keys, pool.values), [[x.number for x in each] for each in usable]
    if meeting_of is None:
        return None
    done: dict[int, CorrectedPassage] = {}
    for place, block in enumerate(stale):
        kept: CorrectedPassage | None = block.derived.get((owner, place))
        if kept and kept.anchors == numbers[place] and blocks.pin_again(kept.block):
            done[place] = kept
    context += [each.block for each in done.values()]
    if new := [place for place, _ in enumerate(stale) if place not in done]:
        made = [blocks.blank(stale[place].length, stale[place].start) for place in new]
        context += made
        of = [stale[place] for place in new], [x.length for x in made], [usable[place] for place in new]
        paged = [x.start for x in made], [x.numbers for x in of[0]], [x.numbers for x in made], pool.size
        where = [starts[place] for place in new], *of[1:]
        with pool.in_order():
            meeting = meeting_of(pool.keys, pool.values, *where, pool.spec.inv_freq, pool.pairing, paged)
            compared = compare_places(meeting.token_distances(), *of[1:], rule.threshold, rule.temperature)
            if not all(each.near for each in compared):
                return None
            meeting.move(torch.cat([each.weights for each in compared], 2))
        for place, block, old, each in zip(new, made, of[0], compared, strict=True):
            done[place] = old.derived[owner, place] = CorrectedPassage(numbers[place], each.used, block)
            blocks.keep(block, old)
    return [done[place] for place, _ in enumerate(stale)]
