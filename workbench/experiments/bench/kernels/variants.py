"""Launches that are tried beside the ones a kernel picks itself: `workbench bench OP --variants`."""

from collections.abc import Mapping, Sequence
from typing import Any

from workbench.kernels._shared.attention import Config

Variant = Mapping[str, Any]  # keywords of `launch`: `config`, `splits`


def _configs(text: str) -> list[Variant]:
    """Read configurations: query rows x keys, warps, stages, and "d" for descriptors."""
    entries = (entry.replace("x", " ").split() for entry in text.split(","))
    return [{"config": Config(*map(int, sizes[:4]), descriptors=sizes[4:] == ["d"])} for sizes in entries]


TALL = _configs("128x64 8 2, 128x64 8 4, 128x128 8 2, 64x64 4 2, 64x64 4 3, 64x128 4 2, 128x32 8 4, 256x64 8 2")
SHORT = _configs("16x128 4 2, 16x128 4 4, 16x64 4 4, 16x128 8 3")
DESCRIBED = _configs(
    "128x64 8 3, 128x64 8 2 d, 128x64 8 4 d, 128x128 8 2 d, 128x128 8 3 d, 64x64 4 2 d, 64x64 4 3 d, 64x128 4 2 d, "
    "128x64 4 3 d, 128x128 8 2"
)
PRODUCTS = _configs("128x128 8 4 d, 128x128 8 3, 128x128 4 3 d, 128x256 8 3 d, 256x128 8 3 d, 64x128 4 4 d")
MEANS = _configs("128x128 8 3, 128x64 4 2, 128x64 4 3, 128x128 4 2")
SPLITS: list[Variant] = [{"splits": count} for count in (4, 8, 16, 32)]
BOTH: list[Variant] = [{"config": Config(128, 64, 8, 2), "splits": 16}, {"config": Config(64, 64, 4, 3), "splits": 8}]

VARIANTS: Mapping[str, Sequence[Variant]] = {
    "choose_bfla": PRODUCTS,
    "choose_flash_prefill": MEANS,
    "choose_xattention": PRODUCTS,
    "page_list_attention": DESCRIBED,
    "q_sparse_attention": TALL,
    "shared_attention": [{"hopper": False}, {"at_once": False}],
    "question_attention": [*SPLITS, *TALL, *SHORT, *BOTH],
    "tile_attention": DESCRIBED,
}


def variants(kernel: str) -> Sequence[Variant]:
    """Return the keywords of every launch that is tried; none for most kernels."""
    return VARIANTS.get(kernel, ())
