"""Mask rules that list single columns (keys). On a GPU, causal kernels run over a copy of the listed keys.

A mask of rows by columns would cost more than the attention. The copy has the listed keys in rising order, so attention
over it is causal by a row's rank among them.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from workbench.core.masks import Sees, causal
from workbench.core.page_table import INVALID_POS, Paged
from workbench.core.plan import Site
from workbench.core.tiling.tiles import Tiles
from workbench.core.utils.wide_copies import gather_tokens
from workbench.engine.attention_backends import choice
from workbench.engine.attention_backends.attention_problem import AttentionProblem, problem_of

ROWS = 64  # maximum rows per group


@dataclass(frozen=True, eq=False)
class ListedColumns:
    """Mask rule: causal over the columns of `seen` [T] (bool) and over all columns from T on."""

    seen: Tensor
    _kept: dict[str, tuple[Tensor, Any]] = field(default_factory=dict, init=False, repr=False)

    def __call__(self, row: Tensor, col: Tensor) -> Tensor:
        return (col <= row) & ((col >= len(self.seen)) | self.lists(col))

    def lists(self, col: Tensor) -> Tensor:
        """Return which columns `col` are listed: bool, of the same shape; those from T on are not."""
        return self.seen.to(col.device)[col.clamp(max=len(self.seen) - 1)]

    def over_listed(
        self, q: Tensor, keys: Tensor, values: Tensor, rows: Tensor, sees: Sees, tiles: None, scale: float | None
    ) -> Tensor:
        """Attend with kernels, as a `Plan.backend`."""
        columns, ranks = self.compute_once("ranks", rows, lambda: self._ranks(rows, keys.shape[1]))
        return plain(q, gather_tokens(keys, columns), gather_tokens(values, columns), ranks, scale)

    def compute_once(self, name: str, rows: Tensor, compute: Any) -> Any:
        """Return `compute()`, called once for all layers that pass the same tensor of rows."""
        if name not in self._kept or self._kept[name][0] is not rows:
            self._kept[name] = rows, compute()
        return self._kept[name][1]

    def _ranks(self, rows: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Return the listed columns [K] below `length`, and the index of each row's [R] last visible one; -1: none."""
        listed = self.seen[:length].nonzero()[:, 0]
        columns = torch.cat((listed, torch.arange(len(self.seen), max(length, len(self.seen))))).to(rows.device)
        return columns, torch.searchsorted(columns, rows, right=True) - 1


@dataclass(frozen=True, eq=False)
class ColumnsByLayer:
    """Select keys per layer, as a `Plan.sparse`: `seen` [L, N] (bool) for all rows and heads, K per layer."""

    seen: Tensor

    @cached_property
    def selected_columns(self) -> Tensor:
        """[L, K] selected columns of each layer; computed once, with a GPU synchronization."""
        return self.seen.nonzero()[:, 1].view(len(self.seen), -1)

    def __call__(self, queries: Tensor, keys: Tensor, rows: Tensor, site: Site) -> Tiles:
        """Select single columns, and no whole tiles."""
        columns = self.seen[site.layer, : keys.shape[1]].to(keys.device).expand(len(queries), -1)
        kept = torch.zeros(len(queries), 1, 1, dtype=torch.bool, device=keys.device)
        return Tiles(kept, keys.shape[1], columns, listed=self.selected_columns[site.layer].to(keys.device))


@dataclass(frozen=True, eq=False)
class OwnOrListed(ListedColumns):
    """Causal mask rule: a row before T attends to its own block and to columns of `seen`; a row from T on, to all.

    `block_of` [T] is the block of each of the first T tokens.
    """

    block_of: Tensor

    def __call__(self, row: Tensor, col: Tensor) -> Tensor:
        end = len(self.seen)
        of_row, of_col = (self.block_of.to(at.device)[at.clamp(max=end - 1)] for at in (row, col))
        return (col <= row) & ((row >= end) | (of_row == of_col) | self.lists(col))

    def over_listed(
        self, q: Tensor, keys: Tensor, values: Tensor, rows: Tensor, sees: Sees, tiles: None, scale: float | None
    ) -> Tensor:
        """Attend with kernels, as a `Plan.backend`."""
        end = len(self.seen)
        first = self.compute_once("first", rows, lambda: int((rows < end).sum()))  # one GPU synchronization
        parts = []
        if first:
            few = self.compute_once("few", rows, lambda: rows[:first])
            parts.append(self._in_parts(q[:, :first], keys[:, :end], values[:, :end], few, scale))
        if first < len(rows):
            parts.append(plain(q[:, first:], keys, values, rows[first:], scale))
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def _in_parts(self, q: Tensor, keys: Tensor, values: Tensor, rows: Tensor, scale: float | None) -> Tensor:
        """Merge attention to listed columns with attention to the other tokens of each row's block -> [Hq, R, D]."""
        launch, merge = choice.kernel("question_attention").launch_parts, choice.kernel("_pages.parts").merge_lists
        columns, ranks = self.compute_once("ranks", rows, lambda: self._ranks(rows, keys.shape[1]))
        listed = choice.identity(len(columns), keys.device)
        one, weight = launch(
            q[None], gather_tokens(keys, columns), gather_tokens(values, columns), ranks[None], listed, scale=scale
        )
        source, place, at, pages = self.compute_once("groups", rows, lambda: self._groups(rows, keys.shape[1]))
        grouped = gather_tokens(q, source).unflatten(1, at.shape).transpose(0, 1)
        out = torch.empty_like(q)
        merge(one, weight, *launch(grouped, keys, values, at, pages, scale=scale), place, out)
        return out

    def _groups(self, rows: Tensor, length: int) -> tuple[Tensor, Tensor, Tensor, Paged]:
        """Split rows [R] into G groups of up to ROWS rows of one block, and list the pages of their blocks.

        Returns the row in each place of the groups [G · ROWS], the place of each row [R], positions [G, ROWS] (-1: no
        row), and the pages, whose listed tokens are masked. There is no GPU synchronization.
        """
        device, page = rows.device, choice.PAGE
        _, sizes = self.block_of.unique_consecutive(return_counts=True)
        ends = sizes.cumsum(0)
        of = self.block_of.to(device)[rows]
        inside = torch.arange(len(rows), device=device) - torch.searchsorted(of, of)
        group = (inside % ROWS == 0).cumsum(0) - 1
        place, count = group * ROWS + inside % ROWS, len(rows) // ROWS + len(sizes)
        source = torch.zeros(count * ROWS, dtype=torch.int64, device=device)
        source.scatter_(0, place, torch.arange(len(rows), device=device))
        at = torch.full_like(source, -1).scatter_(0, place, rows).view(count, ROWS)
        block = torch.zeros(count, dtype=torch.int64, device=device).scatter_(0, group, of)
        begin, end = (x.to(device)[block][:, None] for x in (ends - sizes, ends))
        numbers = begin // page + torch.arange(int(sizes.max()) // page + 2, device=device)
        positions = numbers[..., None] * page + torch.arange(page, device=device)
        own = (positions >= begin[..., None]) & (positions < end[..., None])
        positions = positions.masked_fill(~own | self.lists(positions), INVALID_POS)
        return source, place, at, Paged.of(numbers.clamp(max=(length - 1) // page), positions)


def rising_indices(seen: Tensor, count: int) -> Tensor:
    """Return the rising indices [H, count] of the True entries of `seen` [H, T], `count` per head.

    There is no GPU synchronization.
    """
    place = torch.where(seen, seen.cumsum(-1) - 1, count)  # index in the list; False entries go to the extra last place
    token = torch.arange(seen.shape[1], device=seen.device).expand_as(place)
    return place.new_zeros(len(seen), count + 1).scatter_(1, place, token)[:, :count]


def plain(q: Tensor, keys: Tensor, values: Tensor, rows: Tensor, scale: float | None) -> Tensor:
    """Attend causally with q [Hq, R, D] at `rows` [R] over keys and values [H, T, D], with a kernel -> [Hq, R, D]."""
    problem = problem_of(q, keys, causal, None, False)
    few = choice.few_programs(problem.rows, problem.heads[0], problem.device, waves=1)
    kernel = choice.backend_named("question_attention" if few else "tile_attention")
    return kernel(q, keys, values, rows, causal, None, scale)


def by_kernels(rule: Sees, tiles: Tiles | None, problem: AttentionProblem) -> Any:
    """Return the kernel backend of a rule or of tiles that list columns, on a GPU in 16 bits; None if none fits."""
    listed = None if tiles is None else tiles.listed
    known = isinstance(rule, ListedColumns) if tiles is None else listed is not None and rule is causal
    if not known or not choice.on_gpu(problem.device) or problem.dtype == torch.float32:
        return None
    if choice.backend_named("tile_attention").refuses(replace(problem, causal=True, tile=None, columns=False)):
        return None
    return partial(over_columns, listed) if listed is not None else getattr(rule, "over_listed", None)


def over_columns(
    columns: Tensor,
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    rows: Tensor,
    sees: Sees,
    tiles: Tiles,
    scale: float | None,
) -> Tensor:
    """Attend with q [Hq, R, D] at `rows` [R] to the rising `columns` [K] of keys and values [H, T, D], with a kernel.

    `columns` may be [H, K], a list for each KV head, if each row has equally many before it in all heads.
    """
    ranks = torch.searchsorted(columns if columns.ndim == 1 else columns[0], rows, right=True) - 1
    copied_keys, copied_values = choice.kernel("_select.copies").launch(keys, values, columns)
    return plain(q, copied_keys, copied_values, ranks, scale)
