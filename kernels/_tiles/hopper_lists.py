"""Lists of key tiles as `_tiles_hopper` walks them: the keys of a step, and what a row sees of them.

Entries, steps and tile lists are those of `_tiles_hopper`.
"""

import workbench.kernels._shared.hopper as pipe
from workbench.kernels._shared.triton_import import gl, gluon_jit


@gluon_jit
def start_of(entry, tile_list, LISTED: gl.constexpr, PAIRED: gl.constexpr, SIZE: gl.constexpr):
    """Position of the first key of an entry of the list; OUTSIDE behind its end."""
    entries, list_at, tile_base = tile_list
    if LISTED:
        inside = entry < entries
        tile = gl.load(list_at + entry, mask=inside, other=0)
        if PAIRED:
            tile = tile >> 2
        return gl.where(inside, (tile - tile_base) * SIZE, pipe.OUTSIDE)
    else:
        return gl.where(entry < entries, entry * SIZE, pipe.OUTSIDE)


@gluon_jit
def starts_of(step, tile_list, LISTED: gl.constexpr, PAIRED: gl.constexpr, SIZE: gl.constexpr, N: gl.constexpr):
    """Positions of the first keys of the entries of a step, or of the one of which it is a part."""
    PER: gl.constexpr = N // SIZE if N > SIZE else 1
    starts = (start_of(step // (SIZE // N) if SIZE > N else step * PER, tile_list, LISTED, PAIRED, SIZE),)
    for i in gl.static_range(1, PER):
        starts += (start_of(step * PER + i, tile_list, LISTED, PAIRED, SIZE),)  # type: ignore[assignment]
    return starts


@gluon_jit
def positions_of(step, col, tile_list, LISTED: gl.constexpr, PAIRED: gl.constexpr, SIZE: gl.constexpr, N: gl.constexpr):
    """(positions of the keys `col` of a step, their entries)."""
    if SIZE >= N:
        entry = step // (SIZE // N)
        at = start_of(entry, tile_list, LISTED, PAIRED, SIZE) + step % (SIZE // N) * N + col
    else:
        entry = step * (N // SIZE) + col // SIZE
        at = start_of(entry, tile_list, LISTED, PAIRED, SIZE) + col % SIZE
    return at, entry


@gluon_jit
def masked_logits(s, step, consumer, at_row, tile_list, LISTED: gl.constexpr, PAIRED: gl.constexpr, SIZE: gl.constexpr):
    """Logits without the keys behind each row, and without entries that this consumer does not keep."""
    N: gl.constexpr = s.type.shape[1]
    col = gl.arange(0, N, layout=gl.SliceLayout(0, s.type.layout))
    at, entry = positions_of(step, col, tile_list, LISTED, PAIRED, SIZE, N)
    if PAIRED:
        kept = gl.load(tile_list[1] + entry, mask=entry < tile_list[0], other=3) >> consumer & 1
        at += (1 - kept) * pipe.OUTSIDE
    return gl.where(at[None, :] <= at_row[:, None], s, float("-inf"))


@gluon_jit
def kept_by(step, consumer, tile_list, SIZE: gl.constexpr, N: gl.constexpr):
    """Which entries of a step this consumer keeps, a bit each; all of them behind the end, where no row looks."""
    PER: gl.constexpr = N // SIZE if N > SIZE else 1
    kept = 0
    for i in gl.static_range(PER):
        entry = step * PER + i if N > SIZE else step // (SIZE // N)
        raw = gl.load(tile_list[1] + entry, mask=(entry >= 0) & (entry < tile_list[0]), other=3)
        kept += (raw >> consumer & 1) << i
    return kept


@gluon_jit
def hide_entries(s, kept, SIZE: gl.constexpr, N: gl.constexpr):
    """Logits without the entries that are not in the bits `kept`."""
    PER: gl.constexpr = N // SIZE if N > SIZE else 1
    if kept != (1 << PER) - 1:
        entry = gl.arange(0, N, layout=gl.SliceLayout(0, s.type.layout)) // (N // PER)
        s = gl.where((kept >> entry & 1)[None, :] == 1, s, float("-inf"))
    return s
