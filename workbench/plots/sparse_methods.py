"""How sparse methods are named and coloured: the same in every figure."""

from workbench.methods import registry
from workbench.plots.theme import BLUE, GREEN, INK, MUTED, ORANGE, PINK, RED, SKY

BROWN, VIOLET = "#8C6D31", "#6A51A3"
LOOKS = {  # method: name, colour, plotly symbol
    "bfla": ("BFLA", BLUE, "circle"),
    "flash_prefill": ("FlashPrefill", ORANGE, "square"),
    "xattention": ("XAttention", GREEN, "diamond"),
    "seer_attention": ("SeerAttention", PINK, "star"),
    "quoka": ("QUOKA", BROWN, "hexagon"),
    "vertical_slash": ("vertical-slash", RED, "triangle-up"),
    "window": ("window and sink", SKY, "triangle-down"),
    "strided": ("strided", VIOLET, "pentagon"),
    "random": ("random", MUTED, "circle-open"),
    "oracle": ("oracle", INK, "x"),
    "dense": ("all tiles", INK, "circle"),
    "compact": ("CompactAttention", BLUE, "hourglass"),
}


def name_of(spec: str) -> str:
    """`bfla(mass=0.9)` → BFLA; `compact(over=bfla)` → CompactAttention over BFLA."""
    name, options = registry.parse(spec)
    known = LOOKS.get(name, (name,))[0]
    return f"{known} over {name_of(options['over'])}" if "over" in options else known


def colour_of(spec: str) -> str:
    return LOOKS.get(registry.parse(spec)[0], ("", BLUE))[1]


def symbol_of(spec: str) -> str:
    return LOOKS.get(registry.parse(spec)[0], ("", "", "circle"))[2]
