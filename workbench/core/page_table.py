"""Page tables: the pages of a KV cache that each request reads, as arguments of paged kernels.

A cache is a pool [H, T, D] of pages of S slots, one token each. Page p is slots p·S to p·S + S - 1 of all heads.
"""

from dataclasses import dataclass

from torch import Tensor

INVALID_POS = 2**31 - 1  # position of a masked slot


@dataclass(frozen=True)
class SeparateSoftmax:
    """Positions [first, end) that later tokens attend to in a separate softmax, merged with that of the others.

    Used by APE (arXiv:2502.05431) for its parallel contexts.

    temperature  divides the logits of these positions
    gain         scales their log-sum-exp: lse · (1 + gain) is their weight in the merge
    """

    first: int
    end: int
    temperature: float
    gain: float


@dataclass(frozen=True, eq=False)
class Paged:
    """The pages of B requests, at most P each, ordered by first position; tensors are int32.

    table          [B, P] page numbers
    positions      [B, P, S] position of each slot; INVALID_POS if it is masked
    first          [B, P] smallest position of the page
    last           [B, P] largest position up to and including the page
    shifts         [B, P] positions by which the page's keys are rerotated; None: none are
    partial_pages  whether many pages have masked slots; if not, pages from the first such page on are masked per slot
    length         maximum tokens of a request, if each position from 0 to its last is in one visible slot; None: not
                   known
    page_max       [B, P] largest position of the page, INVALID_POS if it has masked slots; None: computed by kernels
    run            group size of pages with equal shifts, counted from the first page
    """

    table: Tensor
    positions: Tensor
    first: Tensor
    last: Tensor
    shifts: Tensor | None = None
    partial_pages: bool = True
    length: int | None = None
    page_max: Tensor | None = None
    run: int = 1

    @classmethod
    def of(
        cls,
        table: Tensor,
        positions: Tensor,
        shifts: Tensor | None = None,
        partial_pages: bool = True,
        length: int | None = None,
    ) -> "Paged":
        """Return page numbers [B, P] and positions [B, P, S] as a page table, sorted by first position.

        Sorting runs on the tensors' device without a synchronization. Pages without a visible slot come last. One table
        serves all layers of a request.
        """
        first, order = positions.amin(-1).sort(dim=-1, stable=True)
        positions = positions.gather(1, order[..., None].expand_as(positions))
        last = positions.amax(-1)
        if partial_pages:
            visible = positions.masked_fill(positions == INVALID_POS, -1).amax(-1)
            last = visible.masked_fill(first == INVALID_POS, INVALID_POS)
        last = last.cummax(-1).values
        table, positions, first, last = (x.int().contiguous() for x in (table.gather(1, order), positions, first, last))
        shifts = None if shifts is None else shifts.gather(1, order).int().contiguous()
        return cls(table, positions, first, last, shifts, partial_pages, length, positions.amax(-1))
