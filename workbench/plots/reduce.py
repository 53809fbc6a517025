"""A mask rule of any length as a small grey picture, by block mean; the mask itself is never built."""

from collections.abc import Callable

import numpy as np
import torch

Rule = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def shares(rule: Rule, length: int, cells: int = 512) -> np.ndarray:
    """Share of visible pairs per cell, uint8 [N, N] (0 none, 255 all), N = min(length, cells); rows from the top.

    A cell with any visible pair is at least 1, so `shares(...) > 0` is the block maximum: nothing is lost by striding.
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


def firsts(length: int, cells: int = 512) -> np.ndarray:
    """First position of each cell, int64 [N]."""
    count = min(length, cells)
    return -(-np.arange(count) * length // count)


def visible_pairs(rule: Rule, length: int, rows: torch.Tensor | None = None) -> int:
    """How many (row, column) pairs the rule shows, over all rows or only the positions `rows`."""
    cols = torch.arange(length)
    rows = torch.arange(length) if rows is None else rows
    return sum(
        int(rule(some[:, None], cols[None]).expand(len(some), length).sum())
        for some in rows.split(max(1, 4_000_000 // length))
    )
