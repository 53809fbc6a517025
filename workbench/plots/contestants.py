"""How a kernel and its peers are named and coloured: the same in every figure."""

from workbench.experiments import bench
from workbench.plots.theme import BLUE, GREEN, INK, MUTED, ORANGE, PINK, RED, SKY

LOOKS = {  # how a contestant's name begins: name for people, colour
    "ours": ("ours", BLUE),
    "flashinfer": ("FlashInfer", RED),
    "flash": ("SDPA flash", ORANGE),
    "cudnn": ("SDPA cuDNN", GREEN),
    "flex": ("FlexAttention", PINK),
    "transformers": ("transformers", INK),
    "torch": ("torch", MUTED),
}
OTHER_LAUNCH = SKY  # ours in another way, as "ours, written in place"
SYMBOLS = (
    "circle", "square", "diamond", "triangle-up", "star", "hexagon", "cross", "pentagon", "triangle-down", "bowtie",
    "hourglass", "x", "star-square", "diamond-tall", "triangle-left", "triangle-right", "octagon", "diamond-wide",
    "star-diamond", "hexagram",
)  # fmt: skip


def name_of(who: str) -> str:
    """`flash, dense` → SDPA flash, dense."""
    start = start_of(who)
    return LOOKS[start][0] + who[len(start) :] if start else who


def colour_of(who: str) -> str:
    start = start_of(who)
    return OTHER_LAUNCH if who.startswith("ours,") else LOOKS[start][1] if start else MUTED


def start_of(who: str) -> str:
    """The contestant without what it does: `flash, dense` → flash; "" for one that is not known."""
    return next((start for start in LOOKS if who == start or who.startswith((f"{start},", f"{start} "))), "")


def maker(who: str) -> str:
    """Who made it, whatever it does: `flash, dense` → SDPA flash; a kernel of ours → ours."""
    start = start_of(who)
    return LOOKS[start][0] if start else LOOKS["ours"][0] if who in bench.names() else who


def colours() -> dict[str, str]:
    """Colour by maker."""
    return dict(LOOKS.values())
