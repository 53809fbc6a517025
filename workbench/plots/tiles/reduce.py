"""Masks of any length as small pictures, by block mean or max, without building the N × N mask."""

from collections.abc import Callable

import numpy as np
import torch

MaskRule = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def shares(rule: MaskRule, length: int, cells: int = 512) -> np.ndarray:
    """Compute the share of attended pairs per cell, uint8 [N, N] (0 none, 255 all), N = min(length, cells).

    Rows count from the top. A cell with any attended pair is at least 1, so `shares(...) > 0` is the block maximum.
    """
    count = min(length, cells)
    of = torch.arange(length) * count // length  # cell of each position, in order
    cols = torch.arange(length)
    total = torch.zeros(count, count, dtype=torch.int64)
    for rows in torch.arange(length).split(max(1, 4_000_000 // length)):
        seen = rule(rows[:, None], cols[None]).expand(len(rows), length)
        wide = torch.zeros(len(rows), count, dtype=torch.int64).index_add_(1, of, seen.long())
        total.index_add_(0, of[rows], wide)
    sizes = torch.bincount(of, minlength=count)
    share = total / (sizes[:, None] * sizes[None])
    return torch.where(total > 0, (share * 255).round().clamp(1, 255), 0).to(torch.uint8).numpy()


def cell_starts(length: int, cells: int = 512) -> np.ndarray:
    """Return the first position of each cell, int64 [N]."""
    count = min(length, cells)
    return -(-np.arange(count) * length // count)


def visible_pairs(rule: MaskRule, length: int, rows: torch.Tensor | None = None) -> int:
    """Count the (query, key) pairs that the rule allows, over all rows or only the positions `rows`."""
    cols = torch.arange(length)
    rows = torch.arange(length) if rows is None else rows
    parts = rows.split(max(1, 4_000_000 // length))
    seen = [rule(part[:, None], cols[None]).expand(len(part), length).sum() for part in parts]
    return sum(int(count) for count in seen)


def blocks(x: np.ndarray, cells: int, how: str = "max", across: str | None = None) -> np.ndarray:
    """Reduce [I, J] to at most [cells, cells]: each cell the "max", "mean" or "sum" (`how`) of its entries.

    `across` replaces `how` for columns.
    """
    for axis, each in ((0, how), (1, across or how)):
        starts = cell_starts(x.shape[axis], cells)
        if len(starts) == x.shape[axis]:
            continue
        whole = x if each == "max" else x.astype(np.float64)
        x = (np.maximum if each == "max" else np.add).reduceat(whole, starts, axis)
        if each == "mean":
            x = x / np.expand_dims(np.diff([*starts, whole.shape[axis]]), 1 - axis)
    return x
