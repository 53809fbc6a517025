"""States and slow rules that the tests of sparse methods share: one pair of tiles at a time, with loops."""

import pytest
import torch

HEADS, KV_HEADS, WIDTH, LENGTH = 4, 2, 8, 75
ROWS = [
    torch.arange(LENGTH),
    torch.arange(32, 64),
    torch.arange(37, 70),
    torch.tensor([0, 3, 4, 5, 17, 18, 40, 41, 42, 43, 66, 70, 71, 72, 74]),
]
IDS = ["whole", "chunk", "unaligned", "scattered"]
every_rows = pytest.mark.parametrize("rows", ROWS, ids=IDS)


def states(rows, seed=0, scale=1.5):
    torch.manual_seed(seed)
    queries, keys = scale * torch.randn(HEADS, LENGTH, WIDTH), scale * torch.randn(KV_HEADS, LENGTH, WIDTH)
    return queries[:, rows], keys[:, : int(rows[-1]) + 1]


def blocks(rows, length, size):
    """Rows of every query block, as (place in the list, position), and keys of every key block."""
    ours = [list(enumerate(rows.tolist()))[at : at + size] for at in range(0, len(rows), size)]
    return ours, [range(at, min(at + size, length)) for at in range(0, length, size)]


def expected(rows, length, size, wanted):
    """[Hq, I, J]: `wanted(head, i, j)` or own tile, where causal."""
    ours, theirs = blocks(rows, length, size)
    kept = torch.zeros(HEADS, len(ours), len(theirs), dtype=torch.bool)
    for head in range(HEADS):
        for i, mine in enumerate(ours):
            for j, keys in enumerate(theirs):
                own = any(row in keys for _, row in mine)
                kept[head, i, j] = keys[0] <= mine[-1][1] and (own or bool(wanted(head, i, j)))
    return kept


def covering(shares, share, first=()):
    """The fewest of a list of numbers that hold `share` of their sum; `first` are taken and counted before others."""
    taken, goal = list(first), share * sum(shares)
    for j in sorted(set(range(len(shares))) - set(first), key=lambda j: (-shares[j], j)):
        if sum(shares[k] for k in taken) >= goal:
            break
        taken.append(j)
    return set(taken)
