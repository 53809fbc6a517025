"""What reports on chunked prefill say of CompactAttention's figures 1 and 5: one sentence each, from the numbers."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from workbench.experiments import chunk_reports
from workbench.metrics.published_numbers import COMPACT_TEXT
from workbench.plots.findings import joined
from workbench.plots.styles import SPARSE_METHODS

Rows = Sequence[Mapping[str, Any]]
IDEAL = 1 / (1 - COMPACT_TEXT["kernel_sparsity"])
UNION = "ours, pages of a union"


def absent(*reports: str) -> str:
    """Say in one line which reports of a figure are not committed, and what makes them; "" where all are."""
    names = chunk_reports.missing(reports)
    commands = ", ".join(f"workbench bench {name}" for name in names)
    return f"Not measured on a GPU yet: {joined(names)} ({commands})." if names else ""


def thousands(tokens: float) -> str:
    """Name a length: 65536 → 64K."""
    return f"{tokens / chunk_reports.UNIT:g}K"


def said_of_sparsity(rows: Rows) -> str:
    """Say how near the ideal each comes, and whether a chunk gets less, as the paper has it."""
    whole = next((row for row in rows if row["whole"]), None)
    chunk = next((row for row in rows if not row["whole"] and row["name"] == "ours"), None)
    if not whole or not chunk:
        return "Only one of the two is measured."
    less = chunk["high"] < whole["low"]
    said = f"Block-sparse attention is {whole['mean']:.1f} times as fast as dense in one pass and {chunk['mean']:.1f} "
    said += f"times in a chunk, of {IDEAL:.0f} at best: "
    said += "a chunk gets less, as the paper prints." if less else "a chunk gets no less here, against the paper."
    union = next((row for row in rows if row["name"] == UNION), None)
    return said + (f" Pages of a union of the same size: {union['mean']:.1f} times." if union else "")


def name_of(spec: str) -> str:
    """Name a method of a report: "CompactAttention over FlashPrefill"."""
    inner = spec.split("over=")[1].split(")")[0] if "over=" in spec else spec.removesuffix(chunk_reports.KEPT)
    said = SPARSE_METHODS.name_of(inner) + (chunk_reports.KEPT if spec.endswith(chunk_reports.KEPT) else "")
    return f"CompactAttention over {said}" if "over=" in spec else said


def grown(rows: Rows) -> list[dict[str, Any]]:
    """Return {name, at, mean, low, high, runs} of every method at the longest prompt.

    Its choices summed over chunks over its choice in one pass.
    """
    longest, found = max(row["at"] for row in rows), []
    of = {(row["name"], row["way"]): row for row in rows if row["at"] == longest}
    for (name, way), chunks in of.items():
        if way == "in chunks" and (name, "one pass") in of:
            found.append({"name": name, "at": longest, **chunk_reports.ratio(chunks, of[name, "one pass"])})
    return found


def said_of_searches(rows: Rows) -> str:
    """Say by how much chunks multiply the cost of each choice, and which of them is the cheapest."""
    times = grown(rows)
    if not times:
        return "No method was measured both ways."
    more = [f"{SPARSE_METHODS.name_of(row['name'])} {row['mean']:.1f}" for row in times]
    at = [row for row in rows if row["at"] == times[0]["at"] and row["way"].startswith("in chunks")]
    least = min(at, key=lambda row: row["ms"])
    dearer = all(row["low"] > 1 for row in times)
    judged = "chunks cost more everywhere, as the paper prints" if dearer else "not everywhere more, against the paper"
    return (
        f"At {thousands(times[0]['at'])} the choices of all chunks take {joined(more)} times as long as one pass: "
        f"{judged}. Least of all takes {SPARSE_METHODS.name_of(least['name'])}, {least['ms']:,.1f} ms a layer."
    )


def flat_words() -> str:
    """Say whose time a chunk does not grow with what lies before it: their kernels wait for the host."""
    names = [name_of(name) for name in chunk_reports.flat()]
    return f"A chunk takes as long at any length under {joined(names)}: launching binds, not the GPU." if names else ""


def not_timed() -> str:
    """Say whose attention alone is timed, and not the whole prompt."""
    names = [name_of(name) for name in chunk_reports.untimed()]
    return f"Over the whole prompt not timed: {joined(names)}." if names else ""


def said_of_growth(title: str, rows: Rows, printed: float) -> str:
    """Say how a union over FlashPrefill grows from the shortest to the longest prompt, beside what is printed."""
    own = [row for row in rows if row["name"] == "compact(over=flash_prefill)"]
    if not own:
        return ""
    rises = all(b["mean"] > a["mean"] for a, b in pairwise(own))
    ends = f"{own[0]['mean']:.2f} at {thousands(own[0]['at'])}, {own[-1]['mean']:.2f} at {thousands(own[-1]['at'])}"
    beside = "above" if own[-1]["mean"] > printed else "below"
    word = "rises with the length" if rises else "does not rise throughout"
    printed_at = thousands(chunk_reports.PRINTED_AT)
    if own[-1]["at"] < chunk_reports.PRINTED_AT:
        beside = f"{printed_at} not timed, of which {printed} is printed"
    else:
        beside += f" the printed {printed}"
    said = f"{title.capitalize()}: the union {word}, {ends} times, {beside}."
    return f"{said} {beside_dense(own)} {beside_tiles(rows)}".rstrip()


def beside_dense(own: Rows) -> str:
    """Say at which lengths a method is slower than dense attention, at which faster, and where neither shows."""
    at: dict[str, list[str]] = {"slower than": [], "level with": [], "faster than": []}
    for row in own:
        word = "slower than" if row["high"] < 1 else "faster than" if row["low"] > 1 else "level with"
        at[word].append(thousands(row["at"]))
    parts = [f"{word} dense at {joined(lengths)}" for word, lengths in at.items() if lengths]
    return f"It is {joined(parts)}."


def beside_tiles(rows: Rows) -> str:
    """Say whether pages of a union are faster than the tiles that they unite, at the longest prompt."""
    longest = max(row["at"] for row in rows)
    of = {row["name"]: row for row in rows if row["at"] == longest}
    said = []
    for name in ("flash_prefill", "seer_attention"):
        tiles, union = of.get(name), of.get(f"compact(over={name})")
        if tiles and union:
            low, high = union["low"] > tiles["high"], union["high"] < tiles["low"]
            word = "faster than" if low else "slower than" if high else "level with"
            said.append(f"over {SPARSE_METHODS.name_of(name)} {word} its tiles at 15% ({tiles['mean']:.2f})")
    return f"There the union is {joined(said)}; the paper prints it as the faster of the two." if said else ""
