"""Copies of tokens [H, T, D] that lie apart: torch moves them number by number, so 8 bytes count as one where they may.

Layouts that do not allow it are copied as they are.
"""

import torch
from torch import Tensor


def _wide(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Return views of 8 bytes a number; the tensors themselves where one of them allows none."""
    per = 8 // tensors[0].element_size()
    for x in tensors:
        apart = *x.stride()[:-1], x.storage_offset(), x.shape[-1]
        if x.dtype != tensors[0].dtype or x.stride(-1) != 1 or any(s % per for s in apart):
            return tensors
    return tuple(x.view(torch.int64) for x in tensors)


def copy(target: Tensor, source: Tensor) -> None:
    """Copy `source` [H, R, D] to `target` of its shape."""
    to, from_ = _wide(target, source) if target.is_cuda else (target, source)
    to.copy_(from_)


def index_copy(target: Tensor, at: Tensor, source: Tensor) -> None:
    """Copy tokens `source` [H, R, D] to places `at` [R] of `target` [H, T, D]."""
    to, from_ = _wide(target, source.to(target.dtype))
    to.index_copy_(1, at, from_)


def taken(source: Tensor, at: Tensor) -> Tensor:
    """Return tokens `at` [R] of `source` [H, T, D], or `at` [H, R] of each head, side by side."""
    wide = _wide(source)[0]
    found = wide[:, at] if at.ndim == 1 else wide.gather(1, at[..., None].expand(-1, -1, wide.shape[-1]))
    return found.view(source.dtype)
