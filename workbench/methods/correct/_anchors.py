"""Anchors of the places of prompts: passages of earlier requests, and which of them a passage now is near."""

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

OLDEST = 5  # of these anchors the one that was used least makes room (released code)
NUCLEUS = 0.9  # anchors of so much weight count as used (released code)


@dataclass(eq=False)
class Anchor:
    """A passage as cached, with how full attention moved it, [C, length, D] each; in the numbers of the model."""

    cached: Pair
    moved: Pair
    used: int = 0
    number: int = field(default_factory=count().__next__)  # no other anchor's
    length: int = field(init=False)
    row: tuple[int, ...] = field(init=False, repr=False)  # where it lies, and numbers of a head

    def __post_init__(self) -> None:
        four = [x.contiguous() for x in (*self.cached, *self.moved)]
        self.cached, self.moved = (four[0], four[1]), (four[2], four[3])
        self.length, self.row = four[0].shape[1], (*(x.data_ptr() for x in four), four[0].stride(0))


@dataclass(frozen=True, eq=False)
class Corrected:
    """A passage as corrected, a `block` in pages: by which `anchors`, by number, and which of them it used."""

    anchors: list[int]
    used: Sequence[int]
    block: Cached


@dataclass(frozen=True, eq=False)
class Met:
    """What came of comparing a passage with the anchors of its place.

    weights  [2, A, n] fp32 of keys and of values, by which offsets are joined
    near     whether it is like some of them rather than all alike; `used`: which of them, then
    """

    weights: Tensor
    near: bool
    used: Sequence[int]


class Rule(Protocol):
    """What `Kvcomm` holds: `most` anchors a place, how alike a passage must be, and how offsets are weighed."""

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
    """Return the anchors of each place that hold as many tokens; none of a place where there is one alone.

    Nothing where nothing is ever corrected.
    """
    kept = [rule.anchors.get(place, []) for place, _ in enumerate(lengths, rule.system)] if rule.most else []
    held = [[anchor for anchor in each if anchor.length >= n] for each, n in zip(kept, lengths, strict=False)]
    return [each if len(each) > 1 else [] for each in held]


def meet(far: Tensor, lengths: list[int], held: list[list[Anchor]], threshold: float, temperature: float) -> list[Met]:
    """Judge passages by how `far` [3, A, N] their tokens are from their anchors; a GPU is waited for."""
    weights = (-far[:2] / temperature).softmax(1).split(lengths, 2)
    squares = torch.stack([part.sum(1) for part in far[2].cpu().split(lengths, 1)])
    alike = (-squares.sqrt()).softmax(1)
    entropy = -(alike * (alike + 1e-40).log2()).sum(1)
    near = (entropy <= threshold * torch.tensor([*map(len, held)]).float().log2()).tolist()  # without anchors it is nan
    order = alike.sort(1, descending=True)
    used = order.values.cumsum(1) - order.values < NUCLEUS
    some = [best[taken].tolist() if each else [] for best, taken, each in zip(order.indices, used, near, strict=True)]
    return [Met(*one) for one in zip(weights, near, some, strict=True)]


def keep(anchors: list[Anchor], new: Anchor, most: int) -> None:
    """Add an anchor to those of a place, of which there are at most so many."""
    if len(anchors) >= most:
        anchors.remove(min(anchors[:OLDEST], key=lambda anchor: anchor.used))
    anchors.append(new)


def count_used(held: list[list[Anchor]], used: Iterable[Sequence[int]]) -> None:
    """Count the anchors that passages are near as used."""
    for anchors, some in zip(held, used, strict=True):
        for number in some:
            anchors[number].used += 1


def cut(spec: ModelSpec, kv: KV, starts: list[int], lengths: list[int]) -> list[Pair]:
    """Copy places out of a cache, one behind the other, keys rotated as if each stood at position 0."""
    parts = stretch(kv.keys, kv.values, starts, lengths, spec.inv_freq, spec.pairing)
    return list(zip(*(x.split(lengths, 1) for x in parts), strict=True))


def kernels(spec: ModelSpec, keys: list[Tensor], values: list[Tensor]) -> Any:
    """Return the `Meeting` that compares and moves places by kernels; None where torch does."""
    module = choice.kernel("_anchors.meeting") if choice.on_gpu(spec.device) else None
    return module.Meeting if module is not None and module.fits(keys, values, spec.inv_freq) else None


def in_pages(
    rule: Rule, blocks: BlockPages, context: list[Cached], starts: Sequence[int], held: Sequence[list[Anchor]]
) -> list[Corrected] | None:
    """Return the corrected blocks of the places, kept ones and new ones; None where torch corrects or one is near none.

    Every block that is pinned for it is added to `context`.
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
