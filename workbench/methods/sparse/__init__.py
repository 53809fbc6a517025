"""Which key tiles a query tile attends to: one method a file, found by `names`.

The engine calls a method once per layer, `Plan(sparse=Bfla(...))`, and gets `Tiles`. Two rules hold for all of them:
what no row can see is not kept, and every row keeps the tile that it stands in (but for `bfla(anchor=chunk)`, which
repeats a fault of released code). Where a paper and its released code differ, the paper's rule is the default and the
code's an option by name. A method imports its types from here.
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
    "fused",
    "named",
    "names",
    "on_gpu",
    "word",
]
LARGEST = 1 << 16  # tokens of a tile, which torch pads prompts to
HERE = Site()  # a whole prompt, in layer 0
Prepare = Callable[[Any], Any]  # of the kernel's module
FITTED = {"trained": None, "profiled": ()}  # what `ready` sets, no options of a spec


def __dir__() -> list[str]:
    return sorted(__all__)


def check_over(_: str, value: Any) -> None:
    """Refuse a spec of a method that there is not."""
    if isinstance(value, str):
        unimported.check("workbench.methods.sparse", value)


OVER = {"check": check_over}  # of a field that is another method, or its spec


def count(default: int, least: int = 0) -> Any:
    """Return an option that is a whole number of at least `least`."""
    return registry.option(default, partial(check_count, least=least))


def fraction(default: float, zero: bool = False) -> Any:
    """Return an option that is a share: above 0 to 1, or from 0 where `zero` is allowed."""
    return registry.option(default, partial(check_share, zero=zero))


def word(default: str, *others: str) -> Any:
    """Return an option that is one of a few words."""
    return registry.ruled(default, f"allowed are {', '.join((default, *others))}", (default, *others).__contains__)


@dataclass(frozen=True)
class Sparse(ABC):
    """A method that chooses key tiles. Logits are queries · keys / sqrt(D), in fp32.

    THRESHOLD  the option by which a method keeps more or less
    STEPS      values of it that keep ever more
    REPLAYS    whether a choice may be captured on a GPU and replayed for later chunks (`Site.replayed`): it then
               depends on rows that the device alone knows, and keys that are not written yet change nothing

    Options made with `count` and `fraction` are checked.
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
        """Tokens of a tile of the choice: the option `block`, but for methods that say otherwise."""
        return int(vars(self)["block"])

    @property
    def rows_together(self) -> int:
        """Return how many rows, counted from the first, share a choice that depends on none but themselves.

        With fewer of the rows in front, a multiple of so many, the others keep the same. 0: the choice depends on all
        of them.
        """
        return 0

    @property
    def replays(self) -> bool:
        """REPLAYS, under these options."""
        return self.REPLAYS

    @abstractmethod
    def choose(self, queries: Tensor, keys: Tensor, grid: Grid, site: Site) -> Tiles:
        """Choose tiles of `size` tokens, with `grid.tiles`."""

    def __call__(self, queries: Tensor, keys: Tensor, rows: Tensor, site: Site = HERE) -> Tiles:
        """Choose tiles for queries [Hq, R, D] at positions `rows` [R] over keys [H, T, D] of positions 0 … T - 1."""
        if len(queries) % len(keys):
            raise BadInput(f"{len(queries)} query heads cannot share {len(keys)} KV heads")
        return self.choose(queries, keys, grid_of(rows.to(keys.device), keys.shape[1], self.size, site.replayed), site)

    @property
    def fitted(self) -> bool:
        """Whether it reads something that was fitted to one model: it chooses after `ready` only, and in that model."""
        return False

    def ready(self, model: PreTrainedModel) -> Self:
        """Return this method for `model`, with what was fitted to it; BadInput where that is of another model."""
        return self

    @property
    def threshold_steps(self) -> tuple[str, tuple[float, ...]]:
        """THRESHOLD and STEPS; of a method over another, those of the other."""
        return self.THRESHOLD, self.STEPS

    def with_threshold(self, value: float) -> Self:
        """Return this method with its threshold at `value`. BadInput where it has none."""
        if not self.THRESHOLD:
            raise BadInput(f"{type(self).__name__} has no option that says how much is kept")
        return replace(self, **{self.THRESHOLD: value})

    def operations(self, heads: int, rows: int, length: int, width: int) -> int:
        """Multiply-adds of the choice in one layer: `heads` query heads, `rows` over `length` keys of `width`."""
        return 0


@dataclass(frozen=True)
class OverSparse(Sparse):
    """A method that changes what another one chooses: `over`, a method or its spec."""

    over: Sparse | str = field(default="flash_prefill", metadata=OVER)

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.over, str):
            object.__setattr__(self, "over", named(self.over))

    @property
    def inner(self) -> Sparse:
        """The other method."""
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
    def fitted(self) -> bool:
        return self.inner.fitted

    def ready(self, model: PreTrainedModel) -> Self:
        return replace(self, over=self.inner.ready(model))

    def operations(self, heads: int, rows: int, length: int, width: int) -> int:
        return self.inner.operations(heads, rows, length, width)


def names() -> list[str]:
    """Return the names of all sparse methods."""
    return registry.names(__name__)


def named(spec: str) -> Sparse:
    """Return a method from `bfla` or `bfla(block=256, mass=0.99)`."""
    return registry.made(__name__, spec, **FITTED)


def fused(
    kernel: str, queries: Tensor, keys: Tensor, rows: Tensor, rule: TileRule, *options: int, **prepared: Prepare
) -> Tensor | None:
    """Choose by a kernel, [Hq, I, J] bool, without an N × N tensor and without waiting for the GPU.

    `prepared`: arguments of `launch` that a function of the kernel's module makes, only where it is launched. None on a
    CPU, and for what the kernel's `takes` leaves out: the method's torch code chooses then, the same tiles up to ties.
    """
    module, arguments = backends.kernel(kernel), (queries[None], keys[None])
    if not on_gpu(keys) or not module.takes(*arguments, rule, *options):
        return None
    made = {name: prepare(module) for name, prepare in prepared.items()}
    return module.launch(*arguments, rows[None], rule, *options, **made)[0]


def on_gpu(x: Tensor) -> bool:
    """Return whether kernels choose there."""
    return x.is_cuda


def check_share(what: str, value: Any, zero: bool = False) -> None:
    """Refuse a share outside (0, 1], or outside [0, 1] where `zero` is allowed."""
    fits = isinstance(value, float | int) and not isinstance(value, bool) and 0 <= value <= 1
    if not fits or (value == 0 and not zero):
        raise BadInput(f"{what} is {value!r}: it is a share, {'from 0' if zero else 'above 0'} to 1")


def check_count(what: str, value: Any, least: int = 0) -> None:
    """Refuse what is no whole number of at least `least`."""
    if not registry.is_whole(value, least):
        raise BadInput(f"{what} is {value!r}: it is a whole number, {least} or more")


def check_divides(part: str, small: int, whole: str, large: int) -> None:
    """Refuse a `whole` that is no multiple of its `part`."""
    if large % small:
        raise BadInput(f"{whole} {large} is no multiple of {part} {small}: choose a {part} that divides it")
