"""Attention of few query tokens over a long paged cache: a question over its cached blocks, or decoding.

    question_attention(q [B, Hq, R, D], keys [H, T, D], values [H, T, D], rows [B, R], pages, inv_freq, pairing, scale)
        -> [B, Hq, R, D], same dtype

Row r of request b is at position `rows[b, r]` (-1: padding, its output is 0) and attends to the slots of its pages up
to that position. `pages` is a `Paged` table, built once for all layers with `paged`. Requests may share blocks. A page
whose position differs from that of its encoding has a shift; its keys are rerotated as they are read, by `inv_freq`
[R/2] and `pairing`. A tile of keys is then at most a page, so pages of 64 tokens or more are fast. The default scale is
1/sqrt(D).

The rows of all query heads of a KV head are one tile of the matrix product, so keys and values are read once. The keys
are split among programs and the parts merged (Flash-Decoding).
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from workbench.core.page_table import Paged
from workbench.core.rope import Pairing
from workbench.kernels._pages import hopper as on_hopper
from workbench.kernels._pages import triton_kernel as _pages_triton
from workbench.kernels._pages.case import case as drawn
from workbench.kernels._pages.triton_kernel import reference
from workbench.kernels._shared.attention import Config
from workbench.kernels._shared.triton_import import need_triton

__all__ = ["cases", "configure", "launch", "launch_parts", "paged", "reference"]

paged = Paged.of
RESIDENT = {16: 3, 32: 3, 64: 2, 128: 1, 256: 1}  # rows → resident programs per multiprocessor


def configure(rows: int, width: int, dtype: torch.dtype) -> Config:
    """Return the launch configuration for `rows` rows (times heads of a group) and head width `width`."""
    tall = min(128, max(16, 1 << (rows - 1).bit_length()))
    if dtype == torch.float32:
        return Config(min(tall, 32), 32, 4, 1)
    wide = width > 128
    if tall <= 32:
        return Config(tall, 64 if wide else 128, 4, 2 if wide else 3)
    if tall == 64:
        return Config(64, 64, 4, 2 if wide else 3)
    return Config(128, 64, 8, 2 if wide else 3)


def launch(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    rows: Tensor,
    pages: Paged,
    inv_freq: Tensor | None = None,
    pairing: Pairing = "neox",
    scale: float | None = None,
    *,
    splits: int | None = None,
    config: Config | None = None,
    early: bool = False,
) -> Tensor:
    """Run the Triton kernel on CUDA tensors, or on CPU tensors in fp32 or fp16 under TRITON_INTERPRET=1.

    Without `config`, the Hopper kernel runs if it fits. The number of parts `splits` is derived from the shape by
    default; the result is the same up to rounding. `early`: with programmatic dependent launch, `pages` and `rows`
    (rising) were complete before the preceding kernel started.
    """
    need_triton("question_attention")
    if config is None and on_hopper.fits(q, keys, values, pages.positions.shape[-1]):
        return on_hopper.launch(q, keys, values, rows, pages, inv_freq, pairing, scale, splits, early=early)
    config = config or configure(q.shape[2] * (q.shape[1] // len(keys)), q.shape[3], q.dtype)
    splits = splits or _pages_triton.parts_for(config, q, len(keys), pages, RESIDENT[config.rows])
    return _pages_triton.launch(config, splits, q, keys, values, rows, pages, inv_freq, pairing, scale)


def launch_parts(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    rows: Tensor,
    pages: Paged,
    inv_freq: Tensor | None = None,
    pairing: Pairing = "neox",
    scale: float | None = None,
    *,
    hopper: bool = True,
    early: bool = False,
) -> tuple[Tensor, Tensor]:
    """Attend as `launch` does, without merging the S parts of the keys (`_pages.parts.merge` does).

    Returns the parts [B, Hq, R, S, D] and the log2 of their weights [B, Hq, R, S], fp32. `hopper`: use the Hopper
    kernel if it fits.
    """
    arguments = keys, values, rows, pages, inv_freq, pairing, scale
    if hopper and on_hopper.fits(q, keys, values, pages.positions.shape[-1]):
        splits = on_hopper.parts_for(q, len(keys), pages.positions[0].numel())
        return on_hopper.launch_parts(q, *arguments, splits, early=early)
    config = configure(q.shape[2] * (q.shape[1] // len(keys)), q.shape[3], q.dtype)
    splits = _pages_triton.parts_for(config, q, len(keys), pages, RESIDENT[config.rows])
    return _pages_triton.launch_parts(config, splits, q, *arguments)


def cases(device: str = "cpu", dtype: torch.dtype = torch.float32) -> Iterator[tuple[Any, ...]]:
    """Yield arguments to compare `launch` with `reference`: head widths, groups, odd lengths, shared pages."""
    case = partial(drawn, device=device, dtype=dtype)
    yield case(1, contexts=[[0, 1, 2]], blocks=[37, 16, 51], questions=[5], width=128, pairing="neox")
    yield case(2, contexts=[[0, 1], [1, 0, 2], [2]], blocks=[33, 64, 7], questions=[3, 1, 6], width=64)
    yield case(3, contexts=[[]], blocks=[], questions=[1], width=80, heads=(3, 1))  # one page, one row
    yield case(4, contexts=[[0], [0]], blocks=[101], questions=[1, 1], width=96, heads=(10, 2))  # decode
    yield case(5, contexts=[[1, 0]], blocks=[40, 19], questions=[4], width=256, heads=(2, 2), pairing="interleaved")
    yield case(6, contexts=[[0, 1]], blocks=[50, 90], questions=[9], width=80, page=64, pairing="neox")
    yield case(7, contexts=[[], [0]], blocks=[77], questions=[0, 2], page=1, width=64)  # one without rows
    yield case(8, contexts=[[0, 2, 1], [2]], blocks=[200, 64, 333], questions=[40, 7], page=64, width=128)
    yield case(9, contexts=[[1, 0], [0]], blocks=[300, 129], questions=[35, 9], page=128, pairing="neox")
    yield case(
        10,
        contexts=[[0, 1], [1, 0]],
        blocks=[260, 70],
        questions=[20, 1],
        recompute=0.3,
        page=64,
        width=128,
        pairing="interleaved",
        heads=(6, 2),
    )
    pairs = case(11, contexts=[[1, 0]], blocks=[256, 128], questions=[20], page=64, width=128, pairing="neox")
    yield *pairs[:4], replace(pairs[4], run=2), *pairs[5:]  # pairs of adjacent pages share a shift
    if device != "cpu":  # two row tiles of a head, several parts
        long = partial(case, blocks=[1900, 1920], page=128, width=128, heads=(64, 16))
        yield long(12, contexts=[[1, 0]], questions=[50], pairing="neox")
        yield long(13, contexts=[[0, 1]], questions=[56])
