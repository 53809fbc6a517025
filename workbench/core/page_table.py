"""The pages of a KV cache that requests read: what paged kernels take beside queries, keys and values.

A cache is one pool [H, T, D]. Page p of S tokens is tokens p·S to p·S + S - 1 of it, for every head. A slot is one
token of a page.
"""

from dataclasses import dataclass

from torch import Tensor

INVALID_POS = 2**31 - 1  # position of a slot that no row sees


@dataclass(frozen=True)
class Apart:
    """Positions `first` to `end`, which rows from `end` on attend to apart from all others; both parts are merged.

    temperature  by which the logits of these positions are divided
    gain         by so many times itself their log-sum-exp grows then
    """

    first: int
    end: int
    temperature: float
    gain: float


@dataclass(frozen=True, eq=False)
class Paged:
    """The pages of B requests, P each at most, in the order of their first position; all int32.

    table          [B, P] page numbers
    positions      [B, P, S] of every slot; INVALID_POS where no row may see it
    first          [B, P] smallest position of the page
    last           [B, P] largest position of this page and all before it
    shifts         [B, P] how many positions the keys of the page are shifted; None where none are
    partial_pages  whether many pages have slots at INVALID_POS; otherwise pages from the first such page on are masked
                   slot by slot
    length         most tokens of a request, where every position from 0 to the request's last stands in one
                   slot, whatever the slots at INVALID_POS hold; None where that is not known
    page_max       [B, P] largest position of the page, INVALID_POS where a slot is at INVALID_POS; None: a kernel that
                   needs it computes it
    run            so many pages side by side, counted from the first, are shifted alike
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
        """Sort pages by their first position, on their own device and without waiting for it.

        Pages without a visible slot come last. One table serves all layers of a request.
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
