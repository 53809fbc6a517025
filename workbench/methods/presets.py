"""Published methods by name, each a choice of a trial's fields.

The options of a method are what its paper recommends; METHODS says which paper. What a method caches is its own:
Block-Attention and EPIC cache every chunk by itself (`prepare=independent`).
Full Reuse and FusionRAG cache chunks behind the system prompt.
CacheBlend and Cache-Craft stand as FusionRAG's comparison runs them, behind the system prompt.
MEPIC recomputes the first page of every passage, 16 tokens as in vLLM; PSR is Link0, CacheBlend by keys, and APE.
TurboRAG computes what Block-Attention does. It and tuned-recompute are meant for models that were fine-tuned for
independent blocks, as `smollm2-reader-block` is.
KV Packet and KVLink need a model with soft tokens, as `smollm2-reader-packet` and `smollm2-reader-links` have them.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from workbench.core.errors import BadInput, did_you_mean, format_value, not_allowed, shorten
from workbench.methods import POLICIES, registry
from workbench.methods.method_fields import REUSE


@dataclass(frozen=True)
class PublishedMethod:
    """A published method.

    title     its name
    source    paper or code, with section
    fields    fields of a trial that choose it
    reported  results that the source reports
    follows   what the implementation follows: released code, a reimplementation by others, the paper, or a description
              if no more was found
    """

    title: str
    source: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    reported: str = ""
    follows: str = "the paper"


_block: Callable[..., dict[str, Any]] = partial(dict, mode="block")
_after_system = partial(_block, prepare="after_system")
CACHEBLEND = "the quality of full attention, the first token 2.2 to 3.3 times sooner"  # reported of its whole system
METHODS = {
    "full": PublishedMethod("Full attention", "Vaswani et al., arXiv:1706.03762", {"mode": "full"}, follows=""),
    "block": PublishedMethod(
        "Block-Attention",
        "arXiv:2409.15355, section 2",
        _block(),
        "48.0% where full attention has 67.9%, and 68.4% once the model is tuned for it",
        follows="released code",
    ),
    "prompt-cache": PublishedMethod(
        "PromptCache",
        "arXiv:2311.04934",
        _block(positions="naive"),
        "32.4% on 2WikiMultihopQA where full attention has 73.2%, in Block-Attention's comparison",
        follows="a description",
    ),
    "superposition": PublishedMethod(
        "Superposition",
        "arXiv:2404.06910",
        {"mode": "superposition"},
        "30.1% on 2WikiMultihopQA where full attention has 73.2%, in Block-Attention's comparison",
    ),
    "full-reuse": PublishedMethod(
        "Full Reuse",
        "FusionRAG (Wang et al., From Prefix Cache to Fusion RAG Cache, arXiv:2601.12904), section 2.2.1",
        _after_system(),
        "F1 of 0.712 where full attention has 0.852, on TriviaQA; up to 55% lower on MuSiQue",
    ),
    "cacheblend": PublishedMethod(
        "CacheBlend",
        "arXiv:2405.16444",
        _after_system(select="kv_deviation", ratio=0.15),
        CACHEBLEND,
        follows="a description",
    ),
    "cacheblend-code": PublishedMethod(
        "CacheBlend, released code",
        "arXiv:2405.16444, YaoJiayi/CacheBlend",
        _block(select="kv_deviation(part=v, fresh=True, system=0)", ratio=0.15),
        CACHEBLEND,
        follows="released code",
    ),
    "cache-craft": PublishedMethod(
        "Cache-Craft",
        "arXiv:2502.15734",
        _after_system(select="cache_craft", ratio=None),
        "the quality of full attention at a quarter of its computation",
    ),
    "epic": PublishedMethod(
        "EPIC",
        "arXiv:2410.15332",
        _block(select="first_k", ratio=0.15),
        "negligible or no loss of accuracy, the first token up to 8 times sooner",
        follows="released code",
    ),
    "prophetkv": PublishedMethod(
        "ProphetKV",
        "arXiv:2602.02579",
        _block(select="prophet_kv", ratio=0.2),
        "96% to 101% of full prefill's score at 20% recomputed",
        follows="a description",
    ),
    "qcfuse": PublishedMethod(
        "QCFuse",
        "arXiv:2606.05875",
        _block(select="qc_fuse", ratio=0.3),
        "at most 1% lost at 1.9 times full prefill's speed",
        follows="released code",
    ),
    "cacheclip": PublishedMethod(
        "CacheClip",
        "arXiv:2510.10129",
        _after_system(select="cache_clip(helper=smollm2)", ratio=0.2),
        "91.1% of full attention's score on LongBench at 20% recomputed, with a helper fine-tuned for it",
        follows="a description",
    ),
    "cacheblend-gradual": PublishedMethod(
        "CacheBlend, gradual filtering",
        "arXiv:2405.16444, section 4.3",
        _after_system(select="kv_deviation(fresh=True, stages=(0.3, 0.2))", ratio=0.15),
        CACHEBLEND,
    ),
    "sam-kv": PublishedMethod(
        "SAM-KV",
        "arXiv:2508.11661, as in arXiv:2604.13226's code",
        _block(select="sam_kv", ratio=None, correct="fuse", attend="chosen"),
        "no accuracy lost at 15% of the context's length",
        follows="a reimplementation",
    ),
    "a3": PublishedMethod(
        "A³",
        "arXiv:2511.17560",
        _block(select="a3", ratio=0.15),
        "better scores than four other methods, the first token twice as soon",
        follows="a reimplementation",
    ),
    "ape": PublishedMethod(
        "APE",
        "arXiv:2502.05431",
        _after_system(positions="shared", attend="ape"),
        "98% of full attention's score on retrieved passages",
        follows="released code",
    ),
    "turborag": PublishedMethod(
        "TurboRAG, reordered positions",
        "arXiv:2410.07590, section 3.2",
        _block(),
        "the quality of full attention from a model fine-tuned for it, the first token 8.6 times sooner on average",
        follows="released code",
    ),
    "link0": PublishedMethod("EPIC, LegoLink-0", "arXiv:2410.15332", _block(prepare="link0"), follows="released code"),
    "mepic": PublishedMethod(
        "MEPIC",
        "arXiv:2512.16822",
        _block(select="first_k(k=16)", ratio=None),
        "as accurate as other position-independent caches in down to half the memory, a fifth for long prompts",
        follows="a description",
    ),
    "psr": PublishedMethod(
        "PSR",
        "arXiv:2603.20218",
        _block(prepare="link0", select="kv_deviation(part=k)", ratio=0.15, attend="ape"),
        "up to 5% better than the best of the methods that it is made of",
        follows="a description",
    ),
    "relaxkv": PublishedMethod(
        "RelaxKV",
        "arXiv:2609.33503",
        _block(select="prophet_kv", ratio=0.15, attend="relax_kv"),
        "95.0% where ProphetKV has 91.2%, on RULER's multi-value needles in 32K at 15% recomputed",
        follows="a description",
    ),
    "agentkvshift": PublishedMethod(
        "AgentKVShift",
        "arXiv:2607.21604",
        _block(correct="agent_kv_shift", ratio=0.1),
        "F1 of 0.491 where full attention has 0.509, ProphetKV 0.357 and CacheBlend 0.290, on LoCoMo at 10% recomputed",
        follows="a reimplementation",
    ),
    "kvcomm": PublishedMethod(
        "KVCOMM",
        "arXiv:2510.12872",
        _block(correct="kvcomm"),
        "no quality lost, over 70% of the passages reused, among agents",
        follows="released code",
    ),
    "kv-packet": PublishedMethod(
        "KV Packet",
        "arXiv:2604.13226",
        _block(prepare="packet"),
        "F1 comparable to full attention's, next to nothing computed",
        follows="released code",
    ),
    "kvlink": PublishedMethod(
        "KVLink",
        "arXiv:2502.16002",
        _block(prepare="packet", select="first_k(k=5, last=True)", ratio=None),
        "4% more accurate than earlier methods on average, the first token up to 96% sooner",
        follows="released code",
    ),
    "tuned-recompute": PublishedMethod(
        "Tuned for concatenation, and recomputed",
        "arXiv:2609.09768",
        _block(select="kv_deviation", ratio=0.15),
        "9.7 points better on RULER at 124K, the first token 80% sooner",
        follows="a description",
    ),
    "fusionrag": PublishedMethod(
        "FusionRAG",
        "Wang et al., From Prefix Cache to Fusion RAG Cache, arXiv:2601.12904, section 3",
        _block(prepare="with_neighbours", select="query_guided", ratio=0.15),
        "56% to 100% of what full reuse loses won back on multi-hop questions, the first token 2.7 to 3.9 times sooner",
    ),
}


TUNED = "tuned-recompute"  # depends on the model
OWN_NUMBER = ("cache-craft", "sam-kv")  # choose a number of tokens themselves; a ratio takes the highest of these
ALIKE = {"with_neighbours(n=10, search=exact)": "with_neighbours", "none": ""}  # both searches find the same neighbours


def name_of(fields: Mapping[str, Any]) -> str | None:
    """Return the name of the published method that fields of a trial choose, at any ratio; None if they choose none."""
    return next((name for name, each in METHODS.items() if name != TUNED and _key(each.fields) == _key(fields)), None)


def _key(fields: Mapping[str, Any]) -> list[Any]:
    """Return what distinguishes methods: fields without the ratio, and whether the selector sets its own number."""
    given = {name: ALIKE.get(value, value) for name, value in fields.items() if name not in ("ratio", "charged")}
    given = {"positions": "re-encoded", "prepare": "independent"} | {
        key: value for key, value in given.items() if value
    }
    return [given, "select" in given and fields.get("ratio") is None]


def check_name(method: str) -> None:
    """Raise BadInput for an unknown method."""
    if method not in METHODS:
        raise unknown_method(method, METHODS)


def unknown_method(method: Any, known: Iterable[str]) -> BadInput:
    """Return the error, not raised, for a method that is none of those `known`; it may be a policy of a trial."""
    known = list(known)
    name = str(method).partition("(")[0].strip()
    given = format_value(method) if "(" in str(method) else shorten(method)  # as written in a shell
    kinds = [f"--{kind} {given}" for kind in POLICIES if name in registry.names(f"workbench.methods.{kind}")]
    if not kinds or did_you_mean(name, known):
        return not_allowed("method", method, known)
    return BadInput(f"unknown method {format_value(method)}: it is a choice of trial and sweep, {' or '.join(kinds)}")


def options(method: str | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields of a trial: those of a published method, overridden by what was `given` (as command-line text).

    Raises BadInput for an unknown method, for another mode than the method's, and for a ratio that is neither a number
    nor "own".
    """
    if method is not None:
        check_name(method)
        _check_mode(method, given.get("mode"))
    fields = {**(METHODS[method].fields if method else {}), **given}
    if isinstance(ratio := fields.get("ratio"), str):
        try:
            fields["ratio"] = None if ratio == "own" else float(ratio)
        except ValueError:
            raise BadInput(f"ratio is {ratio!r}: a share from 0 to 1, or own, is needed") from None
    if fields.get("mode") is None and {*REUSE, "store"} & set(given):
        fields["mode"] = "block"
    return fields


def _check_mode(method: str, mode: str | None) -> None:
    own = METHODS[method].fields["mode"]
    if mode is not None and registry.parse(mode)[0] != own:
        raise BadInput(
            f"method {method} and mode {mode} contradict each other (method {method} is mode {own}): leave out one"
        )


def tiles(name: str | None, arguments: str | None) -> str | None:
    """Return the spec of a sparse method from its name and its options: bfla and block=256 make bfla(block=256)."""
    if arguments is None:
        return name
    if name is None or "(" in name:
        raise BadInput(f"options {arguments!r} belong to a sparse method by name, as bfla; given is {name!r}")
    return f"{name}({arguments})"
