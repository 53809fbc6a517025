"""Which attention was the fastest, by shape, from `data/benchmarks/attention_backends.py`; and blocks over two GPUs."""

from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go

from workbench.engine import measured_backends
from workbench.experiments import results
from workbench.plots.findings import joined
from workbench.plots.table import table

OWN = {"dense": "tile_attention", "blocks": "encode_blocks", "blocks of lengths": "encode_blocks"}
NAMES = ("encode_blocks", "tile_attention", "cudnn", "flash")


def fastest_backends(kept: Mapping[str, Any] | None = None) -> go.Figure | None:
    """Tabulate what was measured on each GPU; None where nothing was."""
    if kept is None:
        if "attention_backends" not in results.names():
            return None
        kept = results.read("attention_backends")
    rows: list[list[str]] = []
    groups: list[int] = []
    for name, gpu in kept["gpus"].items():
        groups.append(len(rows))
        rows.append([str(name), *[""] * (len(NAMES) + 2)])
        rows += [_line(row, gpu["rows"]) for row in gpu["rows"]]
    return table(
        ["work", "length", *NAMES, "taken"],
        rows,
        groups=groups,
        widths=[2.6, 0.9, 1.2, 1.2, 0.9, 0.9, 1.3],
        title="Which attention is the fastest, by shape",
        notice=taken(kept),
        caption="Milliseconds, medians of one run a shape, bf16; heads as query/KV heads × width. A baseline is taken "
        f"where it is at least {measured_backends.GAIN:.0%} faster. data/benchmarks/attention_backends.py.",
    )


def taken(kept: Mapping[str, Any]) -> str:
    """Say how often a baseline of torch's is taken in place of our kernels."""
    found = [(row, _taken(row, gpu["rows"])) for gpu in kept["gpus"].values() for row in gpu["rows"]]
    others = [name for row, name in found if name in ("cudnn", "flash")]
    if not found:
        return "Nothing was measured."
    if not others:
        return f"Our kernels are taken for all {len(found)} shapes."
    return (
        f"Of {len(found)} shapes {len(others)} go to a kernel that torch brings "
        f"({joined(sorted({*others}))}), the others to ours."
    )


def _taken(row: Mapping[str, Any], rows: Any) -> str:
    heads = row["heads"]
    own = OWN[row["work"]]
    return measured_backends.fastest(rows, row["work"], heads[0] // heads[1], row["width"], row["length"], own)


def _line(row: Mapping[str, Any], rows: Any) -> list[str]:
    heads = row["heads"]
    times = [f"{row['times'][name]:.3f}" if name in row["times"] else "" for name in NAMES]
    label = f"{row['work']}, {heads[0]}/{heads[1]} × {row['width']}"
    return [label, f"{row['length']:,}", *times, _taken(row, rows)]


def over_two_gpus(kept: Mapping[str, Any] | None = None) -> str:
    """Say how much faster two GPUs encode blocks than one; "" where it was not measured."""
    if kept is None:
        if "two-gpus" not in results.names():
            return ""
        kept = results.read("two-gpus")
    if len(kept["rows"]) < 2:
        return ""
    one, two = kept["rows"][:2]
    times = one["seconds"] / two["seconds"]
    return (
        f"Two GPUs ({kept['device']}) encode {kept['blocks']:,} blocks of {kept['tokens']} tokens {times:.2f} times as "
        f"fast as one: {two['tokens_per_s']:,.0f} tokens a second, {kept['shape']}'s shape."
    )
