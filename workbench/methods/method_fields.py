"""Fields of a method as text and numbers, as on the command line, without heavy imports.

The text of an `Annotated` type is the help text of the command-line option.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from workbench.core import Positions
from workbench.core.errors import BadInput, not_allowed
from workbench.methods import POLICIES, registry, unimported

ModelName = Annotated[str, "Checkpoint folder or name (see `workbench models`)"]
DataName = Annotated[str, "Data set name (see `workbench data`), file, folder of documents, or hf:NAME"]
DeviceName = Annotated[str, "cpu, cuda or cuda:N"]
LayoutName = Annotated[
    str | None,
    "Prompt layout: lab, released, chat (by the tokenizer's template) or a JSON file. Default: the model's own",
]


def _names(folder: str) -> str:
    """Return the names of the policies of a folder, for help texts."""
    return ", ".join(registry.shipped(f"workbench.methods.{folder}"))


PREPARATIONS, SELECTORS, SPARSE, CORRECTIONS, RULES = map(_names, ("prepare", "select", "sparse", "correct", "attend"))
MODES = ("full", "block", "superposition")
EngineName = Literal["auto", "paged", "contiguous"]
ENGINES: tuple[EngineName, ...] = get_args(EngineName)
SchedulerMode = Literal["sync", "request", "layer"]
SCHEDULERS: tuple[SchedulerMode, ...] = get_args(SchedulerMode)
REUSE = ("positions", "prepare", "select", "ratio", "charged", "correct", "attend", "prepared")  # for mode block only


def check_mode(spec: str) -> None:
    """Raise BadInput for an unknown mode."""
    name, options = registry.parse(spec)
    if name not in MODES:
        raise not_allowed("mode", spec, MODES)
    if name == "block" and options:
        raise BadInput(
            f"mode {spec!r} is not understood: the choices of mode block are options, as --prepare and --select"
        )
    if options:
        unimported.check("workbench.methods.modes", spec)


def check_positions(name: Any) -> None:
    """Raise BadInput for unknown positions."""
    if name not in get_args(Positions):
        raise not_allowed("positions", name, get_args(Positions))


def check_ratio(ratio: float | None) -> None:
    """Raise BadInput for a ratio outside [0, 1]; None is allowed."""
    if ratio is not None and not 0 <= ratio <= 1:
        raise BadInput(f"ratio {ratio}: it is a share of the passage tokens, from 0 to 1")


def check_ratio_used(given: Mapping[str, Any]) -> None:
    """Raise BadInput for a ratio in mode block without a selector or a correction, which it would not change."""
    chosen = [given.get(name, "none") for name in ("select", "correct")]
    if given.get("mode") == "block" and given.get("ratio") is not None and chosen == ["none", "none"]:
        raise BadInput(
            f"ratio {given['ratio']} is the share that a selector recomputes, and none is chosen: add one, as --select "
            "query_guided, or leave out the ratio"
        )


def check_engine(name: Any) -> None:
    """Raise BadInput for an unknown engine."""
    if name not in ENGINES:
        raise not_allowed("engine", name, ENGINES)


def check_schedulers(names: Sequence[str]) -> None:
    """Raise BadInput for an unknown scheduler mode, and for an empty list."""
    if unknown := [name for name in names if name not in SCHEDULERS]:
        raise not_allowed("mode", unknown[0], SCHEDULERS)
    if not names:
        raise BadInput(f"no mode: at least one of {', '.join(SCHEDULERS)} is needed")


@dataclass(frozen=True, kw_only=True)
class MethodFields:
    """A method and its policies.

    Modes and policies may have options: `superposition(paths=2)`, `query_guided(layers=all)`. Policies are the files of
    `methods.prepare`, `select`, `correct`, `attend` and `sparse`. Blocks that are missing in the folder `prepared` are
    computed. `ratio` None: the selector decides how many tokens are recomputed. `chunk` None: no chunked prefill.
    """

    mode: Annotated[
        str,
        "full: ordinary prefill (default); block: passages cached separately and reused (default with an option of "
        "reuse, as --select or --store); superposition",
    ] = "full"
    positions: Annotated[
        str,
        "Positions of reused keys: re-encoded for the new position (default); naive: as cached; shared: as cached, "
        "with the longest passage directly before the question",
    ] = "re-encoded"
    prepare: Annotated[
        str,
        f"Preprocessing: what a passage attends to when it is cached: {PREPARATIONS}; options in "
        "parentheses, e.g. with_neighbours(n=10). Default: independent",
    ] = "independent"
    select: Annotated[
        str, f"Which cached tokens to recompute: {SELECTORS}; e.g. kv_deviation(part=v). Default: none"
    ] = "none"
    ratio: Annotated[
        float | None, "Share of the passage tokens to recompute, e.g. 0.15; own: as many as the selector chooses"
    ] = 0.15
    charged: Annotated[
        float | None,
        "Maximum share of a prompt's tokens computed per request, selection included, e.g. 0.15; sets the ratio",
    ] = None
    correct: Annotated[str, f"Correction of cached tokens that are not recomputed: {CORRECTIONS}. Default: none"] = (
        "none"
    )
    attend: Annotated[
        str, f"What computed tokens attend to: {RULES}; e.g. ape(scale=0.8). Default: none (all preceding tokens)"
    ] = "none"
    prepared: Annotated[str | None, "Read cached passages from this folder (written by `workbench prepare`)"] = None
    sparse: Annotated[
        str,
        f"Sparse attention method: {SPARSE}; e.g. flash_prefill(alpha=0.1). Default: none (all tiles)",
    ] = "none"
    chunk: Annotated[int | None, "Tokens per prefill chunk. Default: no chunking"] = None


def check_choices(given: Mapping[str, Any]) -> None:
    """Raise BadInput for invalid fields, as far as possible without importing policies; others have defaults."""
    check_mode(mode := given.get("mode", MethodFields.mode))
    changed = [key for key in REUSE if given.get(key, getattr(MethodFields, key)) != getattr(MethodFields, key)]
    for kind in POLICIES:
        if isinstance(spec := given.get(kind), str) and spec != "none":
            unimported.check(f"workbench.methods.{kind}", spec)
    if mode != "block" and changed:
        name = registry.parse(mode)[0]
        raise BadInput(
            f"{changed[0]} {given[changed[0]]!r} is for mode block: mode {name} reuses no cached blocks; choose mode "
            "block, too"
        )
    check_positions(given.get("positions", MethodFields.positions))
    check_ratio(given.get("ratio", MethodFields.ratio))
    if (charged := given.get("charged")) is not None and not 0 < charged <= 1:
        raise BadInput(f"charged is {charged}: a share of the prompt's tokens above 0, at most 1, is needed")
