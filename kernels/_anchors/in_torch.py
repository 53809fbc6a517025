"""Torch reference of `_anchors/meeting.py`, and a copy of places from a cache."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.linalg import vector_norm

from workbench.core.rope import Pairing, rotate_layers

Pair = tuple[Tensor, Tensor]  # keys as of position 0, values: [heads of all layers, T, D]


class ShiftedPassage(Protocol):
    """A passage of `length` tokens as `cached`, and the offsets `moved`, [C, length, D] each.

    row  addresses of these four tensors, and their head stride
    """

    cached: Pair
    moved: Pair
    length: int
    row: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class InTorch:
    """Torch reference of `meeting.AnchorComparison`: the places of one prompt, and the anchors of each."""

    keys: Sequence[Tensor]
    values: Sequence[Tensor]
    starts: Sequence[int]
    lengths: Sequence[int]
    anchors: Sequence[Sequence[ShiftedPassage]]
    inv_freq: Sequence[Tensor]
    pairing: Pairing

    def token_distances(self) -> Tensor:
        """Return [3, A, N] fp32 of all tokens of the places: mean differences of keys, of values, squares of values.

        Inf for places with fewer than A anchors.
        """
        most = max(map(len, self.anchors))
        out = torch.full((3, most, sum(self.lengths)), torch.inf, device=self.keys[0].device)
        begins, heads = torch.tensor([0, *self.lengths]).cumsum(0), sum(map(len, self.keys))
        mine = stretch(self.keys, self.values, self.starts, self.lengths, self.inv_freq, self.pairing)
        for place, begin, count in zip(self.anchors, begins.tolist(), self.lengths, strict=False):
            here = slice(begin, begin + count)
            for number, anchor in enumerate(place):
                keys, values = (x[:, here] - y[:, :count] for x, y in zip(mine, anchor.cached, strict=True))
                for row, apart in enumerate((keys, values)):
                    out[row, number, here] = vector_norm(apart, 1, (0, 2), dtype=torch.float32) / (
                        heads * keys.shape[2]
                    )
                out[2, number, here] = vector_norm(values, 2, (0, 2), dtype=torch.float32).square()
        return out

    def move(self, weights: Tensor) -> None:
        """Add the offsets to all layers but the first, by weights [2, A, N] fp32 of keys and of values."""
        heads, at = [len(x) for x in self.keys], _starts_of(self.starts, self.lengths)
        ends, parts = slice(self.starts[0], self.starts[-1] + self.lengths[-1]), []
        for part in (0, 1):
            joined = []
            for place, share in zip(self.anchors, weights[part].split([*self.lengths], 1), strict=True):
                moved = [
                    w[:, None] * anchor.moved[part][:, : share.shape[1]]
                    for w, anchor in zip(share, place, strict=False)
                ]
                joined.append(torch.stack(moved).sum(0))
            parts.append(torch.cat(joined, 1).split(heads))
        rotated = list(rotate_layers(parts[0], at, self.inv_freq, self.pairing))
        for mine, offsets in ((self.keys, rotated), (self.values, parts[1])):
            for layer in range(1, len(mine)):
                mine[layer][:, ends] += offsets[layer].to(mine[layer].dtype)


def _starts_of(starts: Sequence[int], lengths: Sequence[int]) -> Tensor:
    """Return [T]: the start of each token's place."""
    return torch.tensor(starts).repeat_interleave(torch.tensor(lengths))


def stretch(
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    starts: Sequence[int],
    lengths: Sequence[int],
    inv_freq: Sequence[Tensor],
    pairing: Pairing,
) -> Pair:
    """Copy places of all layers, keys rotated as if each place began at position 0, in one rotation per layer."""
    here = slice(starts[0], starts[-1] + lengths[-1])
    rotated = rotate_layers([x[:, here] for x in keys], -_starts_of(starts, lengths), inv_freq, pairing)
    return torch.cat(list(rotated)), torch.cat([x[:, here] for x in values])
