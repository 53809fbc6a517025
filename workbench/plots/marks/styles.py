"""Colours, symbols and names of modes, selectors, sparse methods, baselines and reuse statuses in all figures."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from plotly.colors import sample_colorscale

from workbench.methods import registry
from workbench.plots.marks.theme import (
    BLUE,
    GREEN,
    INK,
    MUTED,
    ORANGE,
    PAPER,
    PINK,
    RED,
    SHADES,
    SKY,
    escaped,
    mixed,
    pale,
)

BROWN, VIOLET, MAROON, MINT = "#8C6D31", "#6A51A3", "#743E3E", "#7FD6A8"
SAND, MOSS = "#E4BB67", "#316C13"


@dataclass(frozen=True)
class Look:
    """Style of a series: `symbol` and `dash` in plotly's words; `name` for the legend."""

    colour: str = BLUE
    symbol: str = "circle"
    dash: str = "solid"
    name: str = ""


class Looks(dict[str, Look]):
    """Styles by name. A spec has the style of its name, and keeps its options in the label."""

    def of(self, spec: str) -> Look:
        """Return the style of a spec; unknown names are blue."""
        name, bracket, options = spec.partition("(")
        look = self.get(name, Look(name=name))
        return replace(look, name=f"{look.name}: {options.removesuffix(')')}") if bracket else look

    def name_of(self, spec: str) -> str:
        """Return the readable name: `query_guided` → question-guided (FusionRAG)."""
        return self.of(spec).name

    def colour_of(self, spec: str) -> str:
        """Return the colour of a spec."""
        return self.of(spec).colour

    def symbol_of(self, spec: str) -> str:
        """Return the plotly symbol of a spec."""
        return self.of(spec).symbol


class SparseLooks(Looks):
    """Styles of sparse methods, without options except CompactAttention's selector."""

    def of(self, spec: str) -> Look:
        """Return the style of a spec: `compact(over=bfla)` → CompactAttention over BFLA."""
        name, options = registry.parse(spec)
        look = self.get(name, Look(name=name))
        return replace(look, name=f"{look.name} over {self.name_of(options['over'])}") if "over" in options else look


class BaselineLooks(Looks):
    """Styles of kernel baselines by the start of their label: `flash, dense` is SDPA flash."""

    def start_of(self, label: str) -> str:
        """Return the baseline's name: `flash, dense` → flash; "" if unknown."""
        return next((start for start in self if label == start or label.startswith((f"{start},", f"{start} "))), "")

    def of(self, label: str) -> Look:
        """Return the style of a label: `flash, dense` → SDPA flash, dense; unknown ones are grey."""
        start = self.start_of(label)
        look = self[start] if start else Look(MUTED)
        colour = OTHER_LAUNCH if label.startswith("ours,") else look.colour
        return replace(look, colour=colour, name=look.name + label[len(start) :])

    def colours(self) -> dict[str, str]:
        """Return the colour of every baseline family."""
        return {look.name: look.colour for look in self.values()}


MODES = Looks(
    {
        "full": Look(INK, "circle", name="full attention"),
        "block": Look(BLUE, "square", name="block attention, re-encoded"),
        "naive": Look(RED, "diamond", name="block attention, naive positions"),
        "recompute": Look(ORANGE, "star", name="cached blocks, some tokens recomputed"),
        "stock full": Look(MUTED, "triangle-up", name="transformers, full prefill"),
        "stock prefix": Look(GREEN, "triangle-down", name="transformers, ready prefix cache"),
    }
)
SCHEDULERS = Looks(  # scheduler modes, and serving without cached blocks
    {
        "sync": Look(MUTED, "square", name="synchronous"),
        "request": Look(BLUE, name="asynchronous, by request"),
        "layer": Look(GREEN, "diamond", name="asynchronous, by layer"),
        "at once": Look(SKY, name="asynchronous, ready requests first"),
        "full prefill": Look(INK, "x", "dot", name="full prefill"),
    }
)
CACHES = Looks(
    {
        "prefix caching": Look(MUTED, "square", name="prefix caching"),
        "reordered prefix caching": Look(ORANGE, "diamond", name="reordered prefix caching"),
        "block reuse": Look(BLUE, name="block reuse"),
        "block reuse, 15% recomputed": Look(GREEN, "triangle-up", name="block reuse, 15% recomputed"),
        "Alternative Path": Look(BLUE, name="Alternative Path"),
        "Alternative Path, first computed in place": Look(SKY, name="Alternative Path, first computed in place"),
        "prefix caching, LRU in as many bytes": Look(PINK, "square", name="prefix caching, LRU in as many bytes"),
    }
)
MODE_NAMES = {mode: look.name for mode, look in MODES.items()}
REUSE = Looks(
    {
        "full attention": Look(INK, "circle", name="full attention"),
        "nothing recomputed": Look(BLUE, "square", name="cached blocks, positions re-encoded"),
        "nothing recomputed, naive positions": Look(RED, "diamond", name="cached blocks, naive positions"),
    }
)
SELECTORS = Looks(
    {
        "none": Look(MUTED, "circle-open", name="nothing recomputed"),
        "random": Look(SKY, "circle", name="random"),
        "first_k": Look(ORANGE, "triangle-up", name="first tokens (EPIC)"),
        "kv_deviation": Look(RED, "diamond", name="KV deviation (CacheBlend)"),
        "inter_attention": Look(PINK, "pentagon", name="inter-attention (Cache-Craft)"),
        "cache_craft": Look(BROWN, "hexagon", name="CCI and CFO (Cache-Craft)"),
        "query_guided": Look(BLUE, "square", name="question-guided (FusionRAG)"),
        "prophet_kv": Look(SKY, "square", name="question-guided in all layers (ProphetKV)"),
        "a3": Look(ORANGE, "square", name="question-guided in the first layer (A³)"),
        "qc_fuse": Look(RED, "square", name="question-guided by digests (QCFuse)"),
        "cache_clip": Look(PINK, "square", name="a helper's attention (CacheClip)"),
        "sam_kv": Look(BROWN, "triangle-down", name="anchors and retrieved blocks (SAM-KV)"),
        "answer_guided": Look(GREEN, "star", name="answer-guided"),
        "oracle": Look(INK, "x", name="largest deviation (oracle)"),
        "all": Look(INK, "circle", name="full attention"),
    }
)
SPARSE_METHODS = SparseLooks(
    {
        "bfla": Look(BLUE, "circle", name="BFLA"),
        "flash_prefill": Look(ORANGE, "square", name="FlashPrefill"),
        "xattention": Look(GREEN, "diamond", name="XAttention"),
        "seer_attention": Look(PINK, "star", name="SeerAttention"),
        "quoka": Look(BROWN, "hexagon", name="QUOKA"),
        "vertical_slash": Look(RED, "triangle-up", name="vertical-slash"),
        "flex_prefill": Look(ORANGE, "diamond", name="FlexPrefill"),
        "by_head": Look(GREEN, "triangle-down", name="per-head patterns"),
        "window": Look(SKY, "triangle-down", name="window and sink"),
        "strided": Look(VIOLET, "pentagon", name="strided"),
        "random": Look(MUTED, "circle-open", name="random"),
        "oracle": Look(MAROON, "x", name="oracle"),
        "dense": Look(INK, "circle", name="all tiles"),
        "compact": Look(BLUE, "hourglass", name="CompactAttention"),
    }
)
BASELINES = BaselineLooks(
    {
        "ours": Look(BLUE, name="ours"),
        "flashinfer": Look(RED, name="FlashInfer"),
        "flash": Look(ORANGE, name="SDPA flash"),
        "cudnn": Look(GREEN, name="SDPA cuDNN"),
        "flex": Look(PINK, name="FlexAttention"),
        "transformers": Look(INK, name="transformers"),
        "torch": Look(MUTED, name="torch"),
        "sdpa": Look(SKY, name="sdpa"),
        "flash_prefill": Look(MAROON, name="flash_prefill"),
        "xattention": Look(MINT, name="xattention"),
        "seer_attention": Look(SAND, name="seer_attention"),
        "quoka": Look(MOSS, name="quoka"),
    }
)
OTHER_LAUNCH = VIOLET  # another launch of our kernel, e.g. "ours, written in place"
REUSE_STATUSES = Looks(
    {
        "kept": Look(pale(BLUE, 0.22), name="kept in place"),
        "moved": Look(pale(BLUE, 0.6), name="shifted: keys re-encoded"),
        "recalled": Look(GREEN, name="recalled from an earlier prompt"),
        "encoded": Look(RED, name="encoded now"),
    }
)
ALL_COMPUTED = Look(INK, "circle", "solid", "full attention, no cache")
BLOCKS_CACHED = Look(BLUE, "square", "solid", "cached blocks: only changed ones and the question")
TOKENS = {  # field of a `sessions.follow` record → style
    "tokens": ALL_COMPUTED,
    "after_prefix": Look(ORANGE, "diamond", "dash", "prefix cache"),
    "computed": BLOCKS_CACHED,
}
SECONDS = {
    "ttft_full": ALL_COMPUTED,
    "ttft_anew": Look(SKY, "triangle-up", "dot", "all blocks encoded again"),
    "ttft": BLOCKS_CACHED,
}
SCHEMES = Looks(
    {  # of rounding: `metrics.kv.position_encoding`
        "naive: not moved": Look(RED),
        "20 chained bf16 shifts": Look(ORANGE, dash="dash"),
        "20 chained fp32 shifts": Look(ORANGE),
        "bf16 cache, bf16 shift": Look(PINK, dash="dash"),
        "bf16 cache, to zero and on": Look(PINK),
        "bf16 cache, fp32 shift": Look(BLUE),
        "computed in place in bf16": Look(INK),
        "stored un-rotated, rotated once": Look(SKY),
        "fp32 cache, fp32 shift": Look(GREEN),
    }
)
STAGES = Looks(  # up to the first token: `metrics.latency`
    {
        "place": Look(SKY, name="assembling blocks"),
        "choose": Look(BROWN, name="selection"),
        "attend": Look(VIOLET, name="attention"),
        "rest": Look(pale(MUTED, 0.5), name="projections, MLPs, head"),
    }
)
SYMBOLS = """
circle square diamond triangle-up star hexagon cross pentagon triangle-down bowtie hourglass x star-square diamond-tall
triangle-left triangle-right octagon diamond-wide star-diamond hexagram
""".split()


def looks_of(specs: Iterable[str]) -> dict[str, Look]:
    """Return the styles of sparse methods by name; CompactAttention has its selector's colour, dotted."""
    looks = {}
    for spec in specs:
        over = registry.parse(spec)[1].get("over", spec)
        look = replace(SPARSE_METHODS.of(spec), colour=SPARSE_METHODS.colour_of(over))
        looks[look.name] = look if over == spec else replace(look, dash="dot")
    return looks


def block_hovers(record: Mapping[str, Any]) -> list[str]:
    """Return a hover text for every context block of a record of `sessions.follow`."""
    hovers = []
    for at, status in enumerate(record["fates"]):
        shift = f" by {record['moves'][at]:+d}" if status == "moved" else ""
        head = f"block {at}, {record['sizes'][at]} tokens: {REUSE_STATUSES[status].name}{shift}"
        label = escaped(record["labels"][at])
        hovers.append(f"<b>{head}</b><br>{label}")
    return hovers


REUSE_NAMES = {
    "after_system": "Full Reuse",
    "behind_document": "blocks after their document",
    "independent": "independent blocks",
    "with_neighbours": "blocks after neighbours",
}


def reuse_name(prepare: str) -> str:
    """Return the name of reuse without recomputation: "Full Reuse" (FusionRAG) if conditioned on the system prompt."""
    name, _ = registry.parse(prepare)
    return REUSE_NAMES.get(name, "reuse")


DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
TINTS = (None, INK, PAPER)  # mixed into the colour of further lines of a family


def family_looks(named: Iterable[tuple[str, Look]]) -> dict[str, Look]:
    """Return styles by name; variants of one method with equal styles are made distinguishable.

    Further lines of a family get another dash, hollow or other marks, and a darker or lighter colour.
    """
    looks: dict[str, Look] = {}
    taken: dict[tuple[str, str, str], int] = {}
    for name, look in named:
        key = look.colour, look.symbol, look.dash
        number = taken[key] = taken.get(key, -1) + 1
        looks[name] = _variant(look, number) if name not in looks else looks[name]
    return looks


def _variant(look: Look, number: int) -> Look:
    if not number:
        return look
    shape = look.symbol.removesuffix("-open")
    at = SYMBOLS.index(shape) if shape in SYMBOLS else 0
    symbol = f"{shape}-open" if number == 1 and shape == look.symbol else SYMBOLS[(at + 3 * number) % len(SYMBOLS)]
    tint = TINTS[number % len(TINTS)]
    colour = mixed(look.colour, tint, 0.4) if tint else look.colour
    dash = DASHES[(DASHES.index(look.dash) + number) % len(DASHES)]
    return replace(look, colour=colour, symbol=symbol, dash=dash)


def shades(names: Iterable[str]) -> Callable[[str], Look]:
    """Return a style by name: colours from dark to light in the order of the names, e.g. layers."""
    listed = list(dict.fromkeys(names))
    colours = sample_colorscale(SHADES, [0.95 * at / max(len(listed) - 1, 1) for at in range(len(listed))])
    return lambda name: Look(colours[listed.index(name)], name=name)
