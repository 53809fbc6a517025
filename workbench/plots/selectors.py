"""How selectors are named and coloured: the same in every figure."""

from workbench.plots.theme import BLUE, GREEN, INK, MUTED, ORANGE, PINK, RED, SKY

BROWN = "#8C6D31"
LOOKS = {  # selector: name, colour, plotly symbol
    "none": ("Full Reuse", MUTED, "circle-open"),
    "random": ("random", SKY, "circle"),
    "first_k": ("first tokens (EPIC)", ORANGE, "triangle-up"),
    "kv_deviation": ("KV deviation (CacheBlend)", RED, "diamond"),
    "inter_attention": ("inter-attention (Cache-Craft)", PINK, "pentagon"),
    "cache_craft": ("CCI and CFO (Cache-Craft)", BROWN, "hexagon"),
    "query_guided": ("question-guided (FusionRAG)", BLUE, "square"),
    "answer_guided": ("answer-guided", GREEN, "star"),
    "oracle": ("largest deviation (oracle)", INK, "x"),
    "all": ("full attention", INK, "circle"),
}


def name_of(spec: str) -> str:
    """`query_guided` → question-guided (FusionRAG); options are shown as they were given."""
    name, bracket, options = spec.partition("(")
    known = LOOKS.get(name, (name,))[0]
    return f"{known}: {options.removesuffix(')')}" if bracket else known


def colour_of(spec: str) -> str:
    return LOOKS.get(spec.partition("(")[0], ("", BLUE))[1]


def symbol_of(spec: str) -> str:
    return LOOKS.get(spec.partition("(")[0], ("", "", "circle"))[2]
