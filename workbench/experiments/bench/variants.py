"""Launches that are tried beside the ones a kernel picks itself: `workbench bench OP --variants`."""

from collections.abc import Mapping, Sequence
from typing import Any

from workbench.kernels._common import Config

TALL = (
    Config(128, 64, 8, 2), Config(128, 64, 8, 4), Config(128, 128, 8, 2), Config(64, 64, 4, 2), Config(64, 64, 4, 3),
    Config(64, 128, 4, 2), Config(128, 32, 8, 4), Config(256, 64, 8, 2),
)  # fmt: skip
DESCRIBED = (
    Config(128, 64, 8, 3), Config(128, 64, 8, 2, True), Config(128, 64, 8, 4, True), Config(128, 128, 8, 2, True),
    Config(128, 128, 8, 3, True), Config(64, 64, 4, 2, True), Config(64, 64, 4, 3, True), Config(64, 128, 4, 2, True),
    Config(128, 64, 4, 3, True), Config(128, 128, 8, 2),
)  # fmt: skip
SHORT = (Config(16, 128, 4, 2), Config(16, 128, 4, 4), Config(16, 64, 4, 4), Config(16, 128, 8, 3))
SPLITS = (4, 8, 16, 32)


def variants(kernel: str) -> Sequence[Mapping[str, Any]]:
    """Keywords of `launch`."""
    if kernel == "question_attention":
        parts = [{"splits": count} for count in SPLITS]
        both = [{"config": Config(128, 64, 8, 2), "splits": 16}, {"config": Config(64, 64, 4, 3), "splits": 8}]
        return parts + [{"config": one} for one in (*TALL, *SHORT)] + both
    if kernel == "q_sparse_attention":
        return [{"config": one} for one in TALL]
    if kernel in ("tile_attention", "page_attention"):
        return [{"config": one} for one in DESCRIBED]
    return []
