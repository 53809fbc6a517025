"""HTML views of values in notebooks: small tables in the notebook's theme, with escaped text."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

SHOWN = 40  # maximum rows of a table
CELLS = 64  # cells per side of an image


def table(title: str, rows: Iterable[Sequence[object]], head: Sequence[str] = ()) -> str:
    """Return a titled table of at most 40 rows, with the number of omitted rows."""
    lines = [list(row) for row in rows]
    more = f"<tr><td>… and {len(lines) - SHOWN:,} more</td></tr>" if len(lines) > SHOWN else ""
    body = "".join(f"<tr>{''.join(f'<td>{_cell(value)}</td>' for value in row)}</tr>" for row in lines[:SHOWN])
    names = f"<thead><tr>{''.join(f'<th>{escape(name)}</th>' for name in head)}</tr></thead>" if head else ""
    return f"<p><b>{escape(title)}</b></p><table>{names}<tbody>{body}{more}</tbody></table>"


def _cell(value: object) -> str:
    text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return escape(text if len(text) <= 200 else text[:199] + "…")


def ranges(positions: "Tensor", most: int = 12) -> str:
    """Format rising positions as at most `most` ranges, 0–3, 7, 9–20, with the number of omitted ranges."""
    breaks = (positions[1:] != positions[:-1] + 1).nonzero().flatten() + 1
    parts = positions.tensor_split(breaks.cpu())
    texts = [f"{int(part[0])}" + (f"–{int(part[-1])}" if len(part) > 1 else "") for part in parts[:most]]
    return ", ".join(texts) + (f" and {len(parts) - most:,} more ranges" if len(parts) > most else "")


def size(count: float) -> str:
    """Format a number of bytes in B, KiB, MiB or GiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    raise AssertionError


def picture(shares: "Tensor", side: int = 192) -> str:
    """Draw shares [I, J] from 0 to 1 as an SVG of `side` pixels in the text's colour.

    Larger maps are averaged to 64 × 64 cells.
    """
    from torch.nn.functional import adaptive_avg_pool2d  # imported late: records are shown without torch

    rows, columns = (min(CELLS, count) for count in shares.shape)
    small = adaptive_avg_pool2d(shares.float().cpu()[None], (rows, columns))[0]
    cells = [
        f'<rect x="{j}" y="{i}" width="1" height="1" fill-opacity="{share:.2f}"/>'
        for i, line in enumerate(small.tolist())
        for j, share in enumerate(line)
        if share > 0.005
    ]
    box = f'viewBox="0 0 {columns} {rows}" width="{side}" height="{round(side * rows / columns)}"'
    style = "border: 1px solid #8888"
    form = 'preserveAspectRatio="none" shape-rendering="crispEdges" fill="currentColor"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {box} {form} style="{style}">{"".join(cells)}</svg>'
