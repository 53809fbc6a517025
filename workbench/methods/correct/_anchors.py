"""Anchors of the places of prompts: passages of earlier requests, and which of them a new passage is near."""

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

OLDEST = 5  # the least used of so many oldest anchors is evicted (released code)
NUCLEUS = 0.9  # the nearest anchors, up to this weight, count as used (released code)


@dataclass(eq=False)
class Anchor:
    """A passage as cached, and the offsets to full attention, [C, length, D] each, in the model's dtype."""

    cached: Pair
    moved: Pair
    used: int = 0
    number: int = field(default_factory=count().__next__)  # unique
    length: int = field(init=False)
    row: tuple[int, ...] = field(init=False, repr=False)  # addresses of its tensors, and their stride from head to head

    def __post_init__(self) -> None:
        four = [x.contiguous() for x in (*self.cached, *self.moved)]
        self.cached, self.moved = (four[0], four[1]), (four[2], four[3])
        self.length, self.row = four[0].shape[1], (*(x.data_ptr() for x in four), four[0].stride(0))


@dataclass(frozen=True, eq=False)
class Corrected:
    """A corrected passage, a `block` in pages: the numbers of its `anchors`, and the indices of those it used."""

    anchors: list[int]
    used: Sequence[int]
    block: Cached


@dataclass(frozen=True, eq=False)
class Met:
    """The comparison of a passage with the anchors of its place.

    weights  [2, A, n] fp32 of keys and of values, by which offsets are averaged
    near     whether it is near some of them, not equally far from all
    used     indices of those that it is near
    """

    weights: Tensor
    near: bool
    used: Sequence[int]


class Rule(Protocol):
    """The fields of `Kvcomm`: `most` anchors per place, and the parameters by which passages are compared."""

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


def held_of(rule: Rule, lengths: list[int]) -> list[list[Anchor]]:
    """Return the anchors of each place that are at least as long as its passage; none if there is only one.

    Returns [] if `most` is 0, which turns corrections off.
    """
    kept = [rule.anchors.get(place, []) for place, _ in enumerate(lengths, rule.system)] if rule.most else []
    held = [[anchor for anchor in each if anchor.length >= n] for each, n in zip(kept, lengths, strict=False)]
    return [each if len(each) > 1 else [] for each in held]


def meet(far: Tensor, lengths: list[int], held: list[list[Anchor]], threshold: float, temperature: float) -> list[Met]:
    """Compare passages with anchors by the distances `far` [3, A, N] of their tokens. Waits for the GPU."""
    weights = (-far[:2] / temperature).softmax(1).split(lengths, 2)
    squares = torch.stack([part.sum(1) for part in far[2].cpu().split(lengths, 1)])
    alike = (-squares.sqrt()).softmax(1)
    entropy = -(alike * (alike + 1e-40).log2()).sum(1)
    near = (entropy <= threshold * torch.tensor([*map(len, held)]).float().log2()).tolist()  # nan without anchors
    order = alike.sort(1, descending=True)
    used = order.values.cumsum(1) - order.values < NUCLEUS
    some = [best[taken].tolist() if each else [] for best, taken, each in zip(order.indices, used, near, strict=True)]
    return [Met(*one) for one in zip(weights, near, some, strict=True)]


def keep(anchors: list[Anchor], new: Anchor, most: int) -> None:
    """Add an anchor to those of a place; of `most`, evict one."""
    if len(anchors) >= most:
        anchors.remove(min(anchors[:OLDEST], key=lambda anchor: anchor.used))
    anchors.append(new)


def count_used(held: list[list[Anchor]], used: Iterable[Sequence[int]]) -> None:
    """Increment the use counts of the anchors that passages are near."""
    for anchors, some in zip(held, used, strict=True):
        for number in some:
            anchors[number].used += 1


def cut(spec: ModelSpec, kv: KV, starts: list[int], lengths: list[int]) -> list[Pair]:
    """Copy places out of a cache, with keys rotated as if each place began at position 0."""
    parts = stretch(kv.keys, kv.values, starts, lengths, spec.inv_freq, spec.pairing)
    return list(zip(*(x.split(lengths, 1) for x in parts), strict=True))


def kernels(spec: ModelSpec, keys: list[Tensor], values: list[Tensor]) -> Any:
    """Return the class `Meeting`, whose kernels compare and move places; None if torch is used instead."""
    module = choice.kernel("_anchors.meeting") if choice.on_gpu(spec.device) else None
    return module.Meeting if module is not None and module.fits(keys, values, spec.inv_freq) else None


def in_pages(
    rule: Rule, blocks: BlockPages, context: list[Cached], starts: Sequence[int], held: Sequence[list[Anchor]]
) -> list[Corrected] | None:
    """Return the corrected blocks of the places, kept or new; None without kernels, or if a passage is near no anchor.

    Every block pinned on the way is added to `context`.
    """
    pool, stale, owner = blocks.pool, context[rule.system :], id(rule.anchors)
    meeting_of, numbers = kernels(pool.spec, pool.keys, pool.values), [[x.number for x in each] for each in held]
    if meeting_of is None:
        return None
    done: dict[int, Corrected] = {}
    for place, block in enumerate(stale):
        kept: Corrected | None = block.derived.get((owner, place))
        if kept and kept.anchors == numbers[place] and blocks.again(kept.block):
            done[place] = kept
    context += [each.block for each in done.values()]
    if new := [place for place, _ in enumerate(stale) if place not in done]:
        made = [blocks.blank(stale[place].length, stale[place].start) for place in new]
        context += made
        of = [stale[place] for place in new], [x.length for x in made], [held[place] for place in new]
        paged = [x.start for x in made], [x.numbers for x in of[0]], [x.numbers for x in made], pool.size
        where = [starts[place] for place in new], *of[1:]
        with pool.in_order():
            meeting = meeting_of(pool.keys, pool.values, *where, pool.spec.inv_freq, pool.pairing, paged)
            met = meet(meeting.far(), *of[1:], rule.threshold, rule.temperature)
            if not all(each.near for each in met):
                return None
            meeting.move(torch.cat([each.weights for each in met], 2))
        for place, block, old, each in zip(new, made, of[0], met, strict=True):
            done[place] = old.derived[owner, place] = Corrected(numbers[place], each.used, block)
            blocks.keep(block, old)
    return [done[place] for place, _ in enumerate(stale)]
