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
    escape_text,
    lighten,
    mixed,
)

BROWN, VIOLET, MAROON, MINT = "#8C6D31", "#6A51A3", "#743E3E", "#7FD6A8"
SAND, MOSS = "#E4BB67", "#316C13"


@dataclass(frozen=True)
class SeriesStyle:
    """Style of a series: `symbol` and `dash` in plotly's words; `name` for the legend."""

    colour: str = BLUE
    symbol: str = "circle"
    dash: str = "solid"
    name: str = ""


class SeriesStyles(dict[str, SeriesStyle]):
    """Styles by name. A spec has the style of its name, and keeps its options in the label."""

    def of(self, spec: str) -> SeriesStyle:
        """Return the style of a spec; unknown names are blue."""
        name, bracket, options = spec.partition("(")
        look = self.get(name, SeriesStyle(name=name))
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


class SparseStyles(SeriesStyles):
    """Styles of sparse methods, without options except CompactAttention's selector."""

    def of(self, spec: str) -> SeriesStyle:
        """Return the style of a spec: `compact(over=bfla)` → CompactAttention over BFLA."""
        name, options = registry.parse(spec)
        look = self.get(name, SeriesStyle(name=name))
        return replace(look, name=f"{look.name} over {self.name_of(options['over'])}") if "over" in options else look


class BaselineStyles(SeriesStyles):
    """Styles of kernel baselines by the start of their label: `flash, dense` is SDPA flash."""

    def start_of(self, label: str) -> str:
        """Return the baseline's name: `flash, dense` → flash; "" if unknown."""
        return next((start for start in self if label == start or label.startswith((f"{start},", f"{start} "))), "")

    def of(self, label: str) -> SeriesStyle:
        """Return the style of a label: `flash, dense` → SDPA flash, dense; unknown ones are grey."""
        start = self.start_of(label)
        look = self[start] if start else SeriesStyle(MUTED)
        colour = OTHER_LAUNCH if label.startswith("ours,") else look.colour
        return replace(look, colour=colour, name=look.name + label[len(start) :])

    def colours(self) -> dict[str, str]:
        """Return the colour of every baseline family."""
        return {look.name: look.colour for look in self.values()}


MODES = SeriesStyles(
    {
        "full": SeriesStyle(INK, "circle", name="full attention"),
        "block": SeriesStyle(BLUE, "square", name="block attention, re-encoded"),
        "naive": SeriesStyle(RED, "diamond", name="block attention, naive positions"),
        "recompute": SeriesStyle(ORANGE, "star", name="cached blocks, some tokens recomputed"),
        "stock full": SeriesStyle(MUTED, "triangle-up", name="transformers, full prefill"),
        "stock prefix": SeriesStyle(GREEN, "triangle-down", name="transformers, ready prefix cache"),
    }
)
SCHEDULERS = SeriesStyles(  # scheduler modes, and serving without cached blocks
    {
        "sync": SeriesStyle(MUTED, "square", name="synchronous"),
        "request": SeriesStyle(BLUE, name="asynchronous, by request"),
        "layer": SeriesStyle(GREEN, "diamond", name="asynchronous, by layer"),
        "at once": SeriesStyle(SKY, name="asynchronous, ready requests first"),
        "full prefill": SeriesStyle(INK, "x", "dot", name="full prefill"),
    }
)
CACHES = SeriesStyles(
    {
        "prefix caching": SeriesStyle(MUTED, "square", name="prefix caching"),
        "reordered prefix caching": SeriesStyle(ORANGE, "diamond", name="reordered prefix caching"),
        "block reuse": SeriesStyle(BLUE, name="block reuse"),
        "block reuse, 15% recomputed": SeriesStyle(GREEN, "triangle-up", name="block reuse, 15% recomputed"),
        "Alternative Path": SeriesStyle(BLUE, name="Alternative Path"),
        "Alternative Path, first computed in place": SeriesStyle(SKY, name="Alternative Path, first computed in place"),
        "prefix caching, LRU in as many bytes": SeriesStyle(
            PINK, "square", name="prefix caching, LRU in as many bytes"
        ),
    }
)
MODE_NAMES = {mode: look.name for mode, look in MODES.items()}
REUSE = SeriesStyles(
    {
        "full attention": SeriesStyle(INK, "circle", name="full attention"),
        "nothing recomputed": SeriesStyle(BLUE, "square", name="cached blocks, positions re-encoded"),
        "nothing recomputed, naive positions": SeriesStyle(RED, "diamond", name="cached blocks, naive positions"),
    }
)
SELECTORS = SeriesStyles(
    {
        "none": SeriesStyle(MUTED, "circle-open", name="nothing recomputed"),
        "random": SeriesStyle(SKY, "circle", name="random"),
        "first_k": SeriesStyle(ORANGE, "triangle-up", name="first tokens (EPIC)"),
        "kv_deviation": SeriesStyle(RED, "diamond", name="KV deviation (CacheBlend)"),
        "inter_attention": SeriesStyle(PINK, "pentagon", name="inter-attention (Cache-Craft)"),
        "cache_craft": SeriesStyle(BROWN, "hexagon", name="CCI and CFO (Cache-Craft)"),
        "query_guided": SeriesStyle(BLUE, "square", name="question-guided (FusionRAG)"),
        "prophet_kv": SeriesStyle(SKY, "square", name="question-guided in all layers (ProphetKV)"),
        "a3": SeriesStyle(ORANGE, "square", name="question-guided in the first layer (A³)"),
        "qc_fuse": SeriesStyle(RED, "square", name="question-guided by digests (QCFuse)"),
        "cache_clip": SeriesStyle(PINK, "square", name="a helper's attention (CacheClip)"),
        "sam_kv": SeriesStyle(BROWN, "triangle-down", name="anchors and retrieved blocks (SAM-KV)"),
        "answer_guided": SeriesStyle(GREEN, "star", name="answer-guided"),
        "oracle": SeriesStyle(INK, "x", name="largest deviation (oracle)"),
        "all": SeriesStyle(INK, "circle", name="full attention"),
    }
)
SPARSE_METHODS = SparseStyles(
    {
        "bfla": SeriesStyle(BLUE, "circle", name="BFLA"),
        "flash_prefill": SeriesStyle(ORANGE, "square", name="FlashPrefill"),
        "xattention": SeriesStyle(GREEN, "diamond", name="XAttention"),
        "seer_attention": SeriesStyle(PINK, "star", name="SeerAttention"),
        "quoka": SeriesStyle(BROWN, "hexagon", name="QUOKA"),
        "vertical_slash": SeriesStyle(RED, "triangle-up", name="vertical-slash"),
        "flex_prefill": SeriesStyle(ORANGE, "diamond", name="FlexPrefill"),
        "by_head": SeriesStyle(GREEN, "triangle-down", name="per-head patterns"),
        "window": SeriesStyle(SKY, "triangle-down", name="window and sink"),
        "strided": SeriesStyle(VIOLET, "pentagon", name="strided"),
        "random": SeriesStyle(MUTED, "circle-open", name="random"),
        "oracle": SeriesStyle(MAROON, "x", name="oracle"),
        "dense": SeriesStyle(INK, "circle", name="all tiles"),
        "compact": SeriesStyle(BLUE, "hourglass", name="CompactAttention"),
    }
)
BASELINES = BaselineStyles(
    {
        "ours": SeriesStyle(BLUE, name="ours"),
        "flashinfer": SeriesStyle(RED, name="FlashInfer"),
        "flash": SeriesStyle(ORANGE, name="SDPA flash"),
        "cudnn": SeriesStyle(GREEN, name="SDPA cuDNN"),
        "flex": SeriesStyle(PINK, name="FlexAttention"),
        "transformers": SeriesStyle(INK, name="transformers"),
        "torch": SeriesStyle(MUTED, name="torch"),
        "sdpa": SeriesStyle(SKY, name="sdpa"),
        "flash_prefill": SeriesStyle(MAROON, name="flash_prefill"),
        "xattention": SeriesStyle(MINT, name="xattention"),
        "seer_attention": SeriesStyle(SAND, name="seer_attention"),
        "quoka": SeriesStyle(MOSS, name="quoka"),
    }
)
OTHER_LAUNCH = VIOLET  # another launch of our kernel, e.g. "ours, written in place"
REUSE_STATUSES = SeriesStyles(
    {
        "kept": SeriesStyle(lighten(BLUE, 0.22), name="kept in place"),
        "moved": SeriesStyle(lighten(BLUE, 0.6), name="shifted: keys re-encoded"),
        "recalled": SeriesStyle(GREEN, name="recalled from an earlier prompt"),
        "encoded": SeriesStyle(RED, name="encoded now"),
    }
)
ALL_COMPUTED = SeriesStyle(INK, "circle", "solid", "full attention, no cache")
BLOCKS_CACHED = SeriesStyle(BLUE, "square", "solid", "cached blocks: only changed ones and the question")
TOKENS = {  # field of a `sessions.follow` record → style
    "tokens": ALL_COMPUTED,
    "after_prefix": SeriesStyle(ORANGE, "diamond", "dash", "prefix cache"),
    "computed": BLOCKS_CACHED,
}
SECONDS = {
    "ttft_full": ALL_COMPUTED,
    "ttft_anew": SeriesStyle(SKY, "triangle-up", "dot", "all blocks encoded again"),
    "ttft": BLOCKS_CACHED,
}
SCHEMES = SeriesStyles(
    {  # of rounding: `metrics.kv.position_encoding`
        "naive: not moved": SeriesStyle(RED),
        "20 chained bf16 shifts": SeriesStyle(ORANGE, dash="dash"),
        "20 chained fp32 shifts": SeriesStyle(ORANGE),
        "bf16 cache, bf16 shift": SeriesStyle(PINK, dash="dash"),
        "bf16 cache, to zero and on": SeriesStyle(PINK),
        "bf16 cache, fp32 shift": SeriesStyle(BLUE),
        "computed in place in bf16": SeriesStyle(INK),
        "stored un-rotated, rotated once": SeriesStyle(SKY),
        "fp32 cache, fp32 shift": SeriesStyle(GREEN),
    }
)
STAGES = SeriesStyles(  # up to the first token: `metrics.latency`
    {
        "place": SeriesStyle(SKY, name="assembling blocks"),
        "choose": SeriesStyle(BROWN, name="selection"),
        "attend": SeriesStyle(VIOLET, name="attention"),
        "rest": SeriesStyle(lighten(MUTED, 0.5), name="projections, MLPs, head"),
    }
)
SYMBOLS = """
circle square diamond triangle-up star hexagon cross pentagon triangle-down bowtie hourglass x star-square diamond-tall
triangle-left triangle-right octagon diamond-wide star-diamond hexagram
""".split()


def looks_of(specs: Iterable[str]) -> dict[str, SeriesStyle]:
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
        label = escape_text(record["labels"][at])
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


VARIANTS = {  # spec → number of its style among the variants of a method; 0 is the method without options
    "query_guided(layers=all)": 1,
    "query_guided(tokens=last)": 2,
    "kv_deviation(part=v)": 1,
    "kv_deviation(part=k)": 2,
    "kv_deviation(fresh=True, stages=(0.3, 0.2))": 3,
    "first_k(k=5, last=True)": 1,
    "first_k(k=16)": 2,
}


def family_looks(named: Iterable[tuple[str, SeriesStyle]]) -> dict[str, SeriesStyle]:
    """Return styles by name; variants of one method with equal styles are made distinguishable.

    Variants get another dash, hollow or other marks, and a darker or lighter colour. Those in `VARIANTS` have the same
    style in every figure, whatever else it shows.
    """
    given = dict(named)
    used: dict[tuple[str, str, str], set[int]] = {}
    numbers: dict[str, int] = {}
    for name in sorted(given, key=lambda name: VARIANTS.get(name, len(VARIANTS) if "(" in str(name) else 0)):
        look = given[name]
        family = used.setdefault((look.colour, look.symbol, look.dash), set())
        number = VARIANTS.get(name, 0)
        while number in family:
            number += 1
        family.add(number)
        numbers[name] = number
    return {name: _variant(look, numbers[name]) for name, look in given.items()}


def _variant(look: SeriesStyle, number: int) -> SeriesStyle:
    if not number:
        return look
    shape = look.symbol.removesuffix("-open")
    at = SYMBOLS.index(shape) if shape in SYMBOLS else 0
    symbol = f"{shape}-open" if number == 1 and shape == look.symbol else SYMBOLS[(at + 3 * number) % len(SYMBOLS)]
    tint = TINTS[number % len(TINTS)]
    colour = mixed(look.colour, tint, 0.4) if tint else look.colour
    dash = DASHES[(DASHES.index(look.dash) + number) % len(DASHES)]
    return replace(look, colour=colour, symbol=symbol, dash=dash)


def shades(names: Iterable[str]) -> Callable[[str], SeriesStyle]:
    """Return a style by name: colours from dark to light in the order of the names, e.g. layers."""
    listed = list(dict.fromkeys(names))
    colours = sample_colorscale(SHADES, [0.95 * at / max(len(listed) - 1, 1) for at in range(len(listed))])
    return lambda name: SeriesStyle(colours[listed.index(name)], name=name)
