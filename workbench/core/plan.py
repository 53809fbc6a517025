"""Plan of a prefill: the tokens (rows) to compute, and what they attend to."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from workbench.core.errors import BadInput, format_value
from workbench.core.kv import Derived
from workbench.core.masks import Sees, causal
from workbench.core.tiling.tiles import Tiles
from workbench.core.utils import annotations, html_views

# (queries [Hq, R, D], keys [H, T, D], rows [R], site) -> Tiles, for logits of queries · keys / sqrt(D)
Choose = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, "Site"], Tiles]
# (queries [Hq, R, D], keys [H, T, D], values [H, T, D], rows [R], sees, tiles or None, scale) -> [Hq, R, D]
Backend = Callable[..., torch.Tensor]
# (layer, keys [H, T, D], values [H, T, D]): the whole KV including the computed rows, modified in place
Adjust = Callable[[int, torch.Tensor, torch.Tensor], None]


@dataclass(frozen=True)
class Site:
    """Context of a call of a sparse method: its place in the model and in the prompt.

    layer     index of the layer
    length    tokens of the whole prompt, of which rows and keys may be a part; None: they are the whole prompt
    derived   values derived from the layer's keys; None: there are none
    last      whether the rows are known to be the last of the keys, without a gap
    replayed  whether a CUDA graph replays the call with other rows; keys are then those of the whole prompt
    """

    layer: int = 0
    length: int | None = None
    derived: Derived | None = field(default=None, repr=False, compare=False)
    last: bool = False
    replayed: bool = False


@dataclass(frozen=True, eq=False)
class Plan:
    """`rows` [R] are the positions to compute, in rising order; the others are read from the KV.

    sees            mask rule: which keys a query may attend to (combined with the model's own sliding window)
    sparse          sparse method, called once per layer with that layer's queries, keys and rows; not called if the
                    layer's sliding window is narrower than the prompt
    backend         computes the attention instead of torch's `scaled_dot_product_attention`
    return_queries  layers whose queries are returned
    num_layers      stop after this many layers: their KV is written, there are no logits
    adjust          called as adjust(layer, keys, values) after the rows' keys and values are written, before
                    attention: modifies the layer's KV [H, T, D] in place

    Raises BadInput for rows that are not rising positions, and for fields of the wrong type.
    """

    rows: torch.Tensor
    sees: Sees = causal
    sparse: Choose | None = None
    backend: Backend | None = None
    return_queries: tuple[int, ...] = ()
    num_layers: int | None = None
    adjust: Adjust | None = None

    def __post_init__(self) -> None:
        try:
            rows = torch.as_tensor(self.rows)
        except (TypeError, ValueError, RuntimeError):
            raise BadInput(f"rows is {format_value(self.rows)}: a list of positions is needed") from None
        if rows.ndim != 1 or not len(rows) or rows.is_floating_point() or rows.dtype == torch.bool:
            raise BadInput(
                f"rows must be a list of at least one position, got a {rows.dtype} tensor of {tuple(rows.shape)}"
            )
        if rows[0] < 0 or (len(rows) > 1 and not bool((rows[1:] > rows[:-1]).all())):
            raise BadInput("rows must be positions in strictly rising order, from 0: sort and deduplicate them")
        object.__setattr__(self, "rows", rows.long())
        for name in ("sees", "sparse", "backend", "adjust"):
            if not callable(value := getattr(self, name)) and (value is not None or name == "sees"):
                raise BadInput(f"{name} is {format_value(value)}: a function is needed")
        for name, annotation in (("return_queries", Sequence[int]), ("num_layers", int | None)):
            annotations.check(name, getattr(self, name), annotation)
        if self.sees is not causal and not rows.is_cuda:
            check_rule(self.sees, self.rows[:1])

    def _repr_html_(self) -> str:
        """Show the computed rows and the options in a notebook."""
        rows = [("rows", f"{len(self.rows):,}: {html_views.ranges(self.rows)}"), ("sees", _called(self.sees))]
        for name in ("sparse", "backend", "adjust"):
            rows += [(name, _called(value))] if (value := getattr(self, name)) is not None else []
        rows += [("queries of layers", ", ".join(map(str, self.return_queries)))] if self.return_queries else []
        rows += [("layers", f"the first {self.num_layers}")] if self.num_layers is not None else []
        return html_views.table("Plan", rows)


def _called(value: object) -> str:
    """Return the name of a function, or the repr of another value."""
    return getattr(value, "__name__", None) or repr(value)


def check_rule(sees: Sees, rows: torch.Tensor) -> None:
    """Raise BadInput for a mask rule that does not return one bool for one row and one column."""
    try:
        answer = sees(rows[:1, None], rows[None, :1])
    except TypeError as problem:
        raise BadInput(f"sees cannot be called with (row, column): {problem}") from None
    if not isinstance(answer, torch.Tensor) or answer.dtype != torch.bool or answer.numel() != 1:
        raise BadInput(f"sees returns {format_value(answer)} for one row and one column: a bool tensor is needed")


@dataclass(frozen=True)
class Pass:
    """A forward pass, to count its cost: `rows` are computed over a KV of `length` tokens.

    num_layers  number of layers that run; None: all
    forward     passes with the same number are packed together and read the weights once
    weight      cost of a token in a helper model, relative to the model itself
    """

    rows: Sequence[int]
    length: int
    num_layers: int | None = None
    forward: int = 0
    weight: float = 1.0
