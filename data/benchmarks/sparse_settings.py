"""Settings of sparse methods that are measured: each method by its threshold, and those of BFLA's table 5."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from workbench.data import Sample
from workbench.metrics.answers import wilson

FLASH = "flash_prefill(block=64, sink=1, window=2, tail=1, alpha={:g})"
CURVES: dict[str, tuple[str, tuple[float, ...]]] = {  # method: its spec, and values that keep ever more
    "dense": ("dense(block=64)", ()),
    "oracle": ("oracle(mass={:g})", (0.3, 0.5, 0.7, 0.8, 0.9, 0.95)),
    "bfla": ("bfla(block=64, flat=4, local=1, mass={:.8g})", (0.5, 0.9, 0.99, 0.999, 0.99999)),
    "flash_prefill": (FLASH, (0.9, 0.7, 0.5, 0.3, 0.1)),
    "xattention": ("xattention(block=64, threshold={:g})", (0.3, 0.5, 0.7, 0.8, 0.9)),
    "seer_attention": ("seer_attention(tail=1, threshold={:g})", (0.15, 0.1, 0.06, 0.04, 0.02)),
    "quoka": ("quoka(block=64, keep={:g})", (0.05, 0.1, 0.25, 0.5, 0.75)),
    "vertical_slash": ("vertical_slash(vertical=32, slash={:g}, front=4, near=8)", (8, 16, 32, 64, 128)),
    "window": ("window(local={:g})", (1, 3, 7, 15)),
    "strided": ("strided(stride={:g})", (16, 8, 4, 2)),
    "random": ("random(share={:g})", (0.1, 0.25, 0.5, 0.75)),
    "compact over flash_prefill": (f"compact(over={FLASH})", (0.9, 0.7, 0.5)),
    "compact over xattention": ("compact(over=xattention(block=64, threshold={:g}))", (0.2, 0.3, 0.5)),
}
TABLE = [  # BFLA's table 5, its blocks and groups at a quarter
    "bfla(block=64, flat=16, local=2, mass=0.95, stride=0)",
    "bfla(block=64, flat=16, local=2, mass=0.999, stride=0)",
    "bfla(block=64, flat=16, local=2, mass=0.95)",
    "bfla(block=64, flat=16, local=4, mass=0.95)",
    "bfla(block=64, flat=16, local=2, mass=0.99)",
    "bfla(block=64, flat=16, local=2, mass=0.99, random=0.1)",
    "bfla(block=64, flat=64, local=2, mass=0.99, random=0.1)",
    "bfla(block=128, flat=16, local=2, mass=0.99, random=0.1)",
    "bfla(block=64, flat=16, local=2, mass=0.98)",
    "bfla(block=32, tile=32, flat=16, local=2, mass=0.99, random=0.1)",
    "bfla(block=128, flat=32, local=2, mass=0.99, random=0.1)",
    "bfla(block=256, flat=16, local=2, mass=0.99, random=0.1)",
    "bfla(block=64, flat=16, local=2, mass=0.99, stride=0, rescue=blocks, anchor=chunk)",  # as the released code
    "bfla(block=64, flat=16, local=2, mass=0.99, rescue=blocks)",
    "bfla(block=64, flat=16, local=2, mass=0.99, anchor=chunk)",
]


@dataclass(frozen=True)
class Setting:
    """A method with its threshold at `value`; group "table" for those of BFLA's table."""

    method: str
    spec: str
    value: float | None
    group: str


def fields(spec: str, chunk: int) -> dict[str, Any]:
    """Return the columns of result tables that name a sparse method in a chunked prefill."""
    dense = {"mode": "full", "positions": "re-encoded", "prepare": "independent", "select": "none"}
    return {**dense, "sparse": spec, "chunk": chunk, "method": f"full, {spec}, chunks of {chunk}"}


def answers(samples: Sequence[Sample], right: Sequence[float], **more: Any) -> list[dict[str, Any]]:
    """Return rows of the table `answers`: exact match of every question."""
    pairs = zip(samples, right, strict=True)
    return [{**more, "question": sample.id, "kind": sample.kind, "em": float(em)} for sample, em in pairs]


def count(right: Sequence[float], **more: Any) -> dict[str, Any]:
    """Return the row of the table `counts` for them: exact match with Wilson's interval."""
    low, high = wilson(sum(right), len(right))
    values = {"value": sum(right) / len(right), "low": low, "high": high, "n": len(right)}
    return {**more, "kind": "all", "measure": "em", **values}
