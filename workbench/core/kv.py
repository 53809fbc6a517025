"""Keys and values of a run of tokens, one tensor per layer.

Values derived from the keys of a layer (block means, …) are cached with the KV (`Derived`), with the number of tokens
that they cover. Writing keys makes them stale from the first written token on; they are updated from there on their
next use, without reading earlier keys again.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter, is_
from typing import Any

import torch

from workbench.core.errors import BadInput, format_value
from workbench.core.utils import annotations, html_views
from workbench.core.utils.annotations import Count


class Derived:
    """Cache of values derived from the keys of one layer of a `KV`, by name."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, tuple[Any, int]] = {}  # name → (value, number of tokens it covers)

    def mark_stale(self, first: int) -> None:
        """Mark all values stale from token `first` on."""
        self._kept = {name: (value, min(until, first)) for name, (value, until) in self._kept.items()}

    def get_updated(self, name: Hashable, length: int, complete: Callable[[Any, int], Any]) -> Any:
        """Return the value `name` for the first `length` tokens, updated if it is stale.

        `complete(value, first)` returns it updated from token `first` on; `value` is None the first time.
        """
        value, until = self._kept.pop(name, (None, 0))  # removed first, in case `complete` fails
        value = complete(value, min(until, length))
        self._kept[name] = value, length
        return value

    def get_buffer(self, name: Hashable, make: Callable[[], Any]) -> Any:
        """Return the buffer `name`, created by `make` on first use, which a replayed CUDA graph fills on the device.

        After a replay the caller calls `mark_covered` with the number of tokens it covers. Raises RuntimeError if it
        would be created during a graph capture.
        """
        if name not in self._kept:
            if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
                raise RuntimeError(f"{name} cannot be created during a graph capture")
            self._kept[name] = make(), 0
        return self._kept[name][0]

    def mark_covered(self, until: int) -> None:
        """Record that all values cover the first `until` tokens."""
        self._kept = {name: (value, until) for name, (value, _) in self._kept.items()}


_NBYTES = attrgetter("nbytes")

JOINED = 1 << 26  # maximum elements of one tensor on a GPU: larger caches are allocated per layer
Tensors = list[torch.Tensor]
Stacked = tuple[torch.Tensor, torch.Tensor] | None
Shapes = Sequence[tuple[int, int]]  # heads and head width of each layer


def check_agreement(keys: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    """Raise BadInput unless keys and values [H, T, D] agree in layers, heads, tokens and dtype."""
    if len(keys) != len(values):
        raise BadInput(f"a KV has keys of {len(keys)} layers and values of {len(values)}: they must agree")
    for layer, (k, v) in enumerate(zip(keys, values, strict=True)):
        if k.ndim != 3 or k.shape[:2] != v.shape[:2] or k.shape[1] != keys[0].shape[1]:
            shapes = f"{tuple(k.shape)} and {tuple(v.shape)} in layer {layer}"
            raise BadInput(f"a KV has keys and values of {shapes}: [heads, tokens, width] must agree")
        if k.dtype != v.dtype:
            raise BadInput(f"a KV has keys of {k.dtype} and values of {v.dtype} in layer {layer}: one dtype is needed")


def side_by_side(
    make: Callable[..., torch.Tensor], shapes: Shapes, capacity: int, joined: bool | None = None, **options: Any
) -> Tensors:
    """Create one tensor [H, capacity, D] per layer, as views of one tensor if all layers have the same shape.

    An operation on all layers is then one call (`layered`). `make` is torch.zeros or torch.empty, `options` its
    arguments. `joined` allows the views; None: on a CPU, and elsewhere up to `JOINED` elements.
    """
    if joined is None:
        numbers = capacity * sum(heads * width for heads, width in shapes)
        joined = numbers <= JOINED or torch.device(options.get("device") or "cpu").type == "cpu"
    if len(set(shapes)) == 1 and joined:
        heads, width = shapes[0]
        return list(make(len(shapes), heads, capacity, width, **options).unbind())
    return [make(heads, capacity, width, **options) for heads, width in shapes]


def layered(layers: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """Return tensors [H, T, D] as one view [L, H, T, D]; None if they are not evenly spaced in one storage."""
    first, last = layers[0], layers[-1]
    at = [x.data_ptr() for x in layers]
    step = at[1] - at[0] if len(at) > 1 else 0
    if step < 0 or step % first.element_size() or at != [at[0] + step * i for i in range(len(at))]:
        return None
    if any(x.shape != first.shape or x.stride() != first.stride() or x.dtype != first.dtype for x in layers):
        return None
    if first.untyped_storage().data_ptr() != last.untyped_storage().data_ptr():
        return None
    return first.as_strided((len(layers), *first.shape), (step // first.element_size(), *first.stride()))


@dataclass
class KV:
    """`keys[layer]` and `values[layer]` are [H, T, D]; H and D may differ between layers, T may not.

    H is KV heads, T tokens, D head width. Keys are rotated (RoPE) as if the run began at position `start`. `reserve`
    allocates capacity, so that `grow` appends in place. A `read_only` KV is shared (stores return such ones): prefill
    does not write to it, so `clone` it first. Raises BadInput for inconsistent tensors.
    """

    keys: Tensors
    values: Tensors
    start: int = 0
    read_only: bool = False
    _backing: tuple[Tensors, Tensors] | None = field(default=None, init=False, repr=False, compare=False)
    _stacked: tuple[Tensors, Stacked] | None = field(default=None, init=False, repr=False, compare=False)
    _derived: dict[int, Derived] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("keys", "values"):
            layers = getattr(self, name)
            if not isinstance(layers, list | tuple) or not all(isinstance(x, torch.Tensor) for x in layers):
                raise BadInput(f"{name} is {format_value(layers)}: a list of tensors is needed, one per layer")
        check_agreement(self.keys, self.values)
        annotations.check("start", self.start, Count)

    @classmethod
    def zeros(
        cls,
        shapes: list[tuple[int, int]],
        length: int,
        reserve: int = 0,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> "KV":
        """Return unwritten KV of `length` tokens, with capacity for `reserve` more.

        `shapes` is (heads, head width) per layer.
        """

        def new() -> Tensors:
            return side_by_side(torch.zeros, shapes, length + reserve, dtype=dtype, device=device)

        return cls.from_buffers(new(), new(), length)

    @classmethod
    def from_buffers(cls, keys: Tensors, values: Tensors, length: int, start: int = 0) -> "KV":
        """Return the first `length` tokens of tensors [H, capacity, D], one per layer; the rest is spare capacity."""
        kv = cls([x[:, :length] for x in keys], [x[:, :length] for x in values], start)
        kv._backing = (keys, values)
        return kv

    def __len__(self) -> int:
        return self.keys[0].shape[1]

    def __repr__(self) -> str:
        first = self.keys[0]
        shape = f"{len(self.keys)} layers of {first.shape[0]} × {first.shape[2]}"
        stored = f"{str(first.dtype)[6:]} on {first.device}"
        return f"KV({len(self):,} tokens from position {self.start:,}, {shape}, {stored})"

    def _repr_html_(self) -> str:
        """Show shapes, positions and size in a notebook."""
        shapes = Counter(f"{x.shape[0]} heads × {x.shape[2]} channels" for x in self.keys)
        rows = [
            ("tokens", f"{len(self):,}, positions {self.start:,} to {self.start + len(self) - 1:,}"),
            ("layers", "; ".join(f"{count} of {shape}" for shape, count in shapes.items())),
            ("stored as", f"{str(self.keys[0].dtype)[6:]} on {self.keys[0].device}"),
            ("bytes", html_views.size(self.nbytes)),
            ("shared", "read-only" if self.read_only else "writable"),
        ]
        return html_views.table("KV", rows)

    @property
    def nbytes(self) -> int:
        """Bytes of the keys and values, without spare capacity."""
        return sum(map(_NBYTES, self.stacked() or (*self.keys, *self.values)))

    def tensors(self) -> Iterator[torch.Tensor]:
        yield from self.keys
        yield from self.values

    def stacked(self) -> Stacked:
        """Return keys and values of all layers as two views [L, H, T, D]; None if `layered` returns None.

        The result is cached until a layer's tensor is replaced.
        """
        tensors = [*self.keys, *self.values]
        known = self._stacked
        if known is None or len(known[0]) != len(tensors) or not all(map(is_, known[0], tensors)):
            keys, values = layered(self.keys), layered(self.values)
            self._stacked = known = tensors, None if keys is None or values is None else (keys, values)
        return known[1]

    def derived(self, layer: int) -> Derived:
        """Return the derived values of a layer. Code that writes keys must call `changed`."""
        return self._derived.setdefault(layer, Derived())

    def mark_changed(self, first: int = 0) -> None:
        """Report that keys from token `first` on were written: derived values of all layers become stale there."""
        for derived in self._derived.values():
            derived.mark_stale(first)

    @annotations.checked
    def slice(self, begin: int, end: int) -> "KV":
        """Copy tokens [begin, end), with unchanged rotation. Raises BadInput for an empty or invalid range."""
        if not 0 <= begin < end <= len(self):
            raise BadInput(f"cannot slice tokens {begin}:{end} of a KV of {len(self)} tokens")
        if (whole := self.stacked()) is not None:  # copies all layers at once
            parts = [x[:, :, begin:end].clone(memory_format=torch.contiguous_format).unbind() for x in whole]
            return KV(list(parts[0]), list(parts[1]), self.start + begin)
        return KV(
            [x[:, begin:end].clone(memory_format=torch.contiguous_format) for x in self.keys],
            [x[:, begin:end].clone(memory_format=torch.contiguous_format) for x in self.values],
            self.start + begin,
        )

    @annotations.checked
    def clone(self, reserve: Count = 0) -> "KV":
        """Return a writable copy, with capacity for `reserve` more tokens."""
        return self._copy(len(self) + reserve)

    @annotations.checked
    def grow(self, count: Count) -> None:
        """Append `count` unwritten tokens in place; existing tokens are copied only if capacity runs out.

        Raises BadInput for a read-only KV, as `reserve` does.
        """
        self._check_writable()
        length = len(self) + count
        if self._capacity() < length:
            self.reserve(max(length, len(self) + len(self) // 4) - len(self))
        assert self._backing is not None
        self.keys = [x[:, :length] for x in self._backing[0]]
        self.values = [x[:, :length] for x in self._backing[1]]

    @annotations.checked
    def reserve(self, count: Count) -> None:
        """Allocate capacity for `count` more tokens, with at most one copy of the existing ones."""
        self._check_writable()
        if self._capacity() < len(self) + count:
            bigger = self._copy(len(self) + count)
            self.keys, self.values, self._backing = bigger.keys, bigger.values, bigger._backing

    def to(self, device: torch.device | str) -> "KV":
        """Return this run on `device`: itself if it is already there, else a writable copy."""
        if self.keys[0].to(device) is self.keys[0]:  # all tensors are on one device
            return self
        return KV([x.to(device) for x in self.keys], [x.to(device) for x in self.values], self.start)

    def lock(self) -> "KV":
        """Make this run read-only, and return it."""
        self.read_only = True
        return self

    def _copy(self, capacity: int) -> "KV":
        def copied(layers: Tensors) -> Tensors:
            shapes = [(x.shape[0], x.shape[2]) for x in layers]
            new = side_by_side(torch.zeros, shapes, capacity, dtype=layers[0].dtype, device=layers[0].device)
            for whole, x in zip(new, layers, strict=True):
                whole[:, : len(self)] = x
            return new

        return KV.from_buffers(copied(self.keys), copied(self.values), len(self), self.start)

    def _capacity(self) -> int:
        """Return the capacity in tokens; 0 without spare memory, or if tensors were replaced."""
        if self._backing is None:
            return 0
        same = all(
            mine.data_ptr() == whole.data_ptr()
            for layers, wholes in zip((self.keys, self.values), self._backing, strict=True)
            for mine, whole in zip(layers, wholes, strict=True)
        )
        return self._backing[0][0].shape[1] if same else 0

    def _check_writable(self) -> None:
        if self.read_only:
            raise BadInput("this KV is read-only, as it is shared (a store returned it): assemble a prompt or clone it")
