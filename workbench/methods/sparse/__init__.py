"""Sparse methods: which key tiles a query tile attends to; one per file, listed by `names`.

The engine calls a method once per layer, `Plan(sparse=Bfla(...))`, and gets `Tiles`. Two rules hold for every method:
tiles after the last row are dropped, and every row keeps its own tile (except `bfla(anchor=chunk)`, which reproduces a
bug of the released code). If a paper and its released code differ, the paper's rule is the default and the code's is an
option. A method imports its types from here.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Self

from torch import Tensor
from transformers import PreTrainedModel

from workbench.core.errors import BadInput
from workbench.core.plan import Site
from workbench.core.tiling.tile_selection import TileRule
from workbench.core.tiling.tiles import Grid, Tiles, grid_of
from workbench.engine.attention_backends import choice as backends
from workbench.methods import registry, unimported

__all__ = [
    "FITTED",
    "HERE",
    "LARGEST",
    "OVER",
    "Grid",
    "OverSparse",
    "Prepare",
    "Site",
    "Sparse",
    "TileRule",
    "Tiles",
    "check_count",
    "check_divides",
    "check_share",
    "count",
    "fraction",
    "from_spec",
    "fused",
    "names",
    "on_gpu",
    "word",
]
LARGEST = 1 << 16  # maximum tile size: torch pads prompts to multiples of it
HERE = Site()  # a whole prompt, layer 0
Prepare = Callable[[Any], Any]  # called with the kernel's module
FITTED = {"trained": None, "profiled": ()}  # fields that `ready` sets, and a spec must not


def __dir__() -> list[str]:
    return sorted(__all__)


def check_over(_: str, value: Any) -> None:
    """Raise BadInput for an invalid spec of another method."""
    if isinstance(value, str):
        unimported.check("workbench.methods.sparse", value)


OVER = {"check": check_over}  # for a field that is another method, or its spec


def count(default: int, least: int = 0) -> Any:
    """Declare an option that is an integer of at least `least`."""
    return registry.option(default, partial(check_count, least=least))


def fraction(default: float, zero: bool = False) -> Any:
    """Declare an option that is a fraction above 0, up to 1; with `zero`, 0 is allowed."""
    return registry.option(default, partial(check_share, zero=zero))


def word(default: str, *others: str) -> Any:
    """Declare an option that is one of a few words."""
    return registry.option_where(
        default, f"allowed are {', '.join((default, *others))}", (default, *others).__contains__
    )


@dataclass(frozen=True)
class Sparse(ABC):
    """Base class of methods that select key tiles, by logits queries · keys / sqrt(D) in fp32.

    THRESHOLD  name of the option that controls the density
    STEPS      values of that option, in the order of increasing density
    REPLAYS    whether the selection can be captured on a GPU and replayed for later chunks (`Site.replayed`): it must
               not read rows on the host, nor depend on keys that are not written yet

    Options declared with `count` and `fraction` are checked. A subclass implements `choose`.
    """

    THRESHOLD: ClassVar[str] = ""
    STEPS: ClassVar[tuple[float, ...]] = ()
    REPLAYS: ClassVar[bool] = False

    def __post_init__(self) -> None:
        registry.check_options(self)
        for name in ("block", "stride"):
            if getattr(self, name, 0) > LARGEST:
                raise BadInput(f"{name} is {getattr(self, name):,}: a tile has at most {LARGEST:,} tokens")

    @property
    def size(self) -> int:
        """Tile size in tokens: the option `block`, unless a method overrides this."""
        return int(vars(self)["block"])

    @property
    def rows_together(self) -> int:
        """Size of row groups, counted from the first row, whose selection is independent of other groups.

        Leading groups can then be omitted without changing the others. 0: the selection depends on every row.
        """
        return 0

    @property
    def replays(self) -> bool:
        """REPLAYS with the current options."""
        return self.REPLAYS

    @abstractmethod
    def choose(self, queries: Tensor, keys: Tensor, grid: Grid, site: Site) -> Tiles:
        """Select tiles for queries [Hq, R, D] over keys [H, T, D]; return them by `grid.tiles`."""

    def __call__(self, queries: Tensor, keys: Tensor, rows: Tensor, site: Site = HERE) -> Tiles:
        """Select tiles for queries [Hq, R, D] at positions `rows` [R] over keys [H, T, D] at positions 0 … T - 1."""
        if len(queries) % len(keys):
            raise BadInput(f"{len(queries)} query heads cannot share {len(keys)} KV heads")
        return self.choose(queries, keys, grid_of(rows.to(keys.device), keys.shape[1], self.size, site.replayed), site)

    @property
    def needs_fitting(self) -> bool:
        """Whether the method needs parameters fitted to a model: `for_model` must then be called first."""
        return False

    def for_model(self, model: PreTrainedModel) -> Self:
        """Return this method with parameters fitted to `model`. Raises BadInput if they belong to another model."""
        return self

    @property
    def threshold_steps(self) -> tuple[str, tuple[float, ...]]:
        """(THRESHOLD, STEPS); for a wrapper, those of the inner method."""
        return self.THRESHOLD, self.STEPS

    def with_threshold(self, value: float) -> Self:
        """Return this method with its threshold set to `value`. Raises BadInput if it has none."""
        if not self.THRESHOLD:
            raise BadInput(f"{type(self).__name__} has no option that controls its density")
        return replace(self, **{self.THRESHOLD: value})

    def operations(self, heads: int, rows: int, length: int, width: int) -> int:
        """Return the multiply-adds of the selection per layer: `heads` query heads, `rows` over `length` keys."""
        return 0


@dataclass(frozen=True)
class OverSparse(Sparse):
    """Base class of wrappers that modify the selection of another method: `over`, a method or its spec."""

    over: Sparse | str = field(default="flash_prefill", metadata=OVER)

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.over, str):
            object.__setattr__(self, "over", from_spec(self.over))

    @property
    def inner(self) -> Sparse:
        """The wrapped method."""
        assert not isinstance(self.over, str)
        return self.over

    @property
    def size(self) -> int:
        return self.inner.size

    @property
    def replays(self) -> bool:
        return self.inner.replays

    @property
    def threshold_steps(self) -> tuple[str, tuple[float, ...]]:
        return self.inner.threshold_steps

    def with_threshold(self, value: float) -> Self:
        return replace(self, over=self.inner.with_threshold(value))

    @property
    def needs_fitting(self) -> bool:
        return self.inner.needs_fitting

    def for_model(self, model: PreTrainedModel) -> Self:
        return replace(self, over=self.inner.for_model(model))

    def operations(self, heads: int, rows: int, length: int, width: int) -> int:
        return self.inner.operations(heads, rows, length, width)


def names() -> list[str]:
    """Return the names of all sparse methods."""
    return registry.names(__name__)


def from_spec(spec: str) -> Sparse:
    """Return a method from a spec: `bfla` or `bfla(block=256, mass=0.99)`."""
    return registry.make_policy(__name__, spec, **FITTED)


def fused(
    kernel: str, queries: Tensor, keys: Tensor, rows: Tensor, rule: TileRule, *options: int, **prepared: Prepare
) -> Tensor | None:
    """Select tiles [Hq, I, J] (bool) with a kernel, without an N × N tensor or synchronization.

    `prepared` are functions of the kernel's module that return further arguments of `launch`. Returns None on a CPU and
    for arguments that the kernel does not support; the method's torch code then selects the same tiles, up to ties.
    """
    module, arguments = backends.kernel(kernel), (queries[None], keys[None])
    if not on_gpu(keys) or not module.takes(*arguments, rule, *options):
        return None
    return module.launch(*arguments, rows[None], rule, *options, **{k: make(module) for k, make in prepared.items()})[0]


def on_gpu(x: Tensor) -> bool:
    """Return whether kernels select tiles for tensors on this device."""
    return x.is_cuda


def check_share(what: str, value: Any, zero: bool = False) -> None:
    """Raise BadInput for a fraction outside (0, 1]; with `zero`, outside [0, 1]."""
    fits = isinstance(value, float | int) and not isinstance(value, bool) and 0 <= value <= 1
    if not fits or (value == 0 and not zero):
        raise BadInput(f"{what} is {value!r}: it is a share, {'from 0' if zero else 'above 0'} to 1")


def check_count(what: str, value: Any, least: int = 0) -> None:
    """Raise BadInput for anything but an integer of at least `least`."""
    if not registry.is_whole(value, least):
        raise BadInput(f"{what} is {value!r}: it is a whole number, {least} or more")


def check_divides(part: str, small: int, whole: str, large: int) -> None:
    """Raise BadInput if the size `large` of `whole` is not a multiple of the size `small` of `part`."""
    if large % small:
        raise BadInput(f"{whole} {large} is no multiple of {part} {small}: choose a {part} that divides it")
