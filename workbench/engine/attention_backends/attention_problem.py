"""Description of a layer's attention for backend dispatch: shapes, dtype, device and masks."""

from dataclasses import dataclass

import torch
from torch import Tensor

from workbench.core.masks import Sees, causal
from workbench.core.tiling.tiles import Tiles


@dataclass(frozen=True)
class AttentionProblem:
    """The attention of one layer: `rows` queries over `length` keys."""

    rows: int
    length: int
    heads: tuple[int, int]  #: query heads, KV heads
    width: int
    dtype: torch.dtype
    device: torch.device
    causal: bool = True  #: the mask rule is plain `causal`
    windowed: bool = False  #: a sliding window masks some keys
    whole: bool = False  #: the queries are a prompt from its start
    tile: int | None = None  #: tokens of a tile, if tiles are selected
    columns: bool = False  #: single keys are selected in addition


def problem_of(
    q: Tensor, keys: Tensor, sees: Sees, window: int | None, whole: bool, tiles: Tiles | None = None
) -> AttentionProblem:
    """Describe the attention of q [Hq, R, D] over keys [H, T, D] under a mask rule, a sliding window and tiles."""
    length = keys.shape[1]
    return AttentionProblem(
        q.shape[1],
        length,
        (q.shape[0], keys.shape[0]),
        q.shape[2],
        q.dtype,
        q.device,
        sees is causal,
        bool(window and window < length),
        whole,
        None if tiles is None else tiles.size,
        tiles is not None and tiles.columns is not None,
    )
