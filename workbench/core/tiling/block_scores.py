"""What sparse methods weigh pairs of blocks by, in torch: queries [Hq, R, D] at `rows` [R] over keys [H, T, D].

No N × N tensor is made. On a GPU the kernels of the same names compute them (`kernels/choose_*.py`).
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from workbench.core.tiling import tile_grid as grids
from workbench.core.tiling.tile_grid import Grid, folded, means


def bfla(queries: Tensor, keys: Tensor, block: int, flat: int) -> Tensor:
    """Return [Hq, Lq, Lkv] fp32 logits: the largest product of any vector of a block with one of another.

    A vector is `flat` neighbouring tokens, the last block is padded with zeros; scale 1/sqrt(D) (arXiv:2605.12193, eq.
    3-8).
    """
    ours, theirs = (folded(x, block).flatten(1, 2).unflatten(1, (-1, flat)).flatten(2) for x in (queries, keys))
    groups, group = block // flat, len(queries) // len(keys)
    step, found = max(1, grids.ELEMENTS // (group * groups * theirs.shape[1])) * groups, []
    for head, key in enumerate(theirs):
        mine, parts = ours[head * group : (head + 1) * group], []
        for at in range(0, ours.shape[1], step):
            products = (mine[:, at : at + step] @ key.mT).unflatten(1, (-1, groups)).unflatten(-1, (-1, groups))
            parts.append(products.amax((2, 4)))
        found.append(torch.cat(parts, 1))
    return torch.cat(found) * queries.shape[-1] ** -0.5


def flash_prefill(queries: Tensor, keys: Tensor, rows: Tensor, block: int) -> Tensor:
    """[Hq, I, J] fp32 logits: log of the sum over the rows of a block of exp(query · mean key of the other block).

    A row counts where it sees the block in whole; -inf where none does. Scale 1/sqrt(D). Their softmax over j is the
    score of FlashPrefill.
    """
    grid, found = Grid(rows, keys.shape[1], block), []
    wide, ends = means(keys, block)[:, None].mT, (grid.columns + 1) * block - 1
    for part in grid.chunks(len(queries) * grid.shape[1]):
        logits = (queries[:, part].float().unflatten(0, (len(keys), -1)) @ wide).flatten(0, 1)
        logits = (logits * keys.shape[-1] ** -0.5).masked_fill_(ends > rows[part, None], -torch.inf)
        found.append(grid.folded(logits, -torch.inf).logsumexp(2))  # [Hq, i, b, J]
    return torch.cat(found, 1)


def in_float8(x: Tensor) -> Tensor:
    """Round numbers to the nearest that float8 (e4m3) holds, at most 448; the dtype stays."""
    return x.clamp(-448.0, 448.0).to(torch.float8_e4m3fn).to(x.dtype)


def xattention(queries: Tensor, keys: Tensor, rows: Tensor, block: int, stride: int) -> Tensor:
    """Return [Hq, I, J] fp32: estimated attention of every block, summed over the squares of the query block.

    A softmax over antidiagonals of stride × stride squares, scale 1/(sqrt(D) stride) (arXiv:2503.16428).
    """
    group, per, grid = len(queries) // len(keys), block // stride, Grid(rows, keys.shape[1], block)
    squares = Grid(rows, keys.shape[1], stride)
    wide, last, found = folded(keys, stride).flatten(2), squares.last, []
    for head, key in enumerate(wide):
        mine, parts = queries[head * group : (head + 1) * group], []
        for part in grid.chunks(-(-group * squares.shape[1] // stride)):
            ours = folded(mine[:, part], stride).flip(2).flatten(2)
            ahead = squares.columns * stride > last[part.start // stride :, None][: ours.shape[1]]
            logits = (ours @ key.mT * (keys.shape[-1] ** -0.5 / stride)).masked_fill_(ahead, -torch.inf)
            share = logits.softmax(-1)
            by_key = pad(share, (0, -share.shape[-1] % per)).unflatten(-1, (-1, per)).sum(-1)
            parts.append(pad(by_key, (0, 0, 0, -by_key.shape[1] % per)).unflatten(1, (-1, per)).sum(2))
        found.append(torch.cat(parts, 1))
    return torch.cat(found)
