"""Use a plain function as a selector: `Trial("lab-full", mode="block", select=my_function)`.

    def nearest_the_end(prompt):                  # needs the prompt only, or
    def quiet_keys(model, prompt, kv):            # also the model and the assembled cache

It returns a tensor, an array or a list for the T context tokens (`prompt.starts[-1]`), one of:

    scores, T floats                  the highest are recomputed; -inf never, inf always
    token indices, integers           tokens to recompute, the most important first; the others are not

A ratio limits both; `ratio=None` recomputes all tokens that the function selects. Tokens of a system block are
recomputed at inf only. The function is registered by its name, which is also its name in records, so different
functions need different names. Commands and other processes find it in a method file (`own`):
`--method-file mine.py --select my_function`.
"""

import inspect
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from workbench.core.blocks import Prompt
from workbench.core.errors import BadInput, format_value, kind_of, shorten
from workbench.core.kv import KV
from workbench.core.plan import Pass
from workbench.methods import own, registry
from workbench.methods.select import Select

NEEDED = "a function of (prompt) or (model, prompt, kv) is needed"
RETURNED = "a score a context token (decimal numbers), or numbers of tokens (whole), are needed"
PLACES = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True)
class FunctionSelect(Select):
    """Selector that calls a user function."""

    function: ClassVar[Callable[..., Any]]
    reads_cache: ClassVar[bool]

    def score(self, prompt: Prompt) -> Tensor:
        return self._called(prompt.starts[-1], prompt)

    def scores(self, model: PreTrainedModel, prompts: Sequence[Prompt], kvs: Sequence[KV]) -> list[Tensor]:
        if not self.reads_cache:
            return [self.score(prompt) for prompt in prompts]
        pairs = zip(prompts, kvs, strict=True)
        return [self._called(prompt.starts[-1], model, prompt, kv) for prompt, kv in pairs]

    def passes(self, model: PreTrainedModel, prompt: Prompt) -> tuple[Pass, ...]:
        """Return (): forward passes of the function are not counted. Raises BadInput if its result is invalid."""
        if not self.reads_cache:
            self.score(prompt)
        return ()

    def _called(self, length: int, *given: Any) -> Tensor:
        """Return the function's scores [length]. Raises BadInput that names the line at which it fails."""
        name, function = type(self).__name__, type(self).function
        try:
            found = function(*given)
        except BadInput:
            raise
        except Exception as problem:
            own_code = [at for at in traceback.extract_tb(problem.__traceback__) if at.filename != __file__]
            where = f" ({Path(own_code[0].filename).name}, line {own_code[0].lineno})" if own_code else ""
            raise BadInput(f"select {name}{where} raised {type(problem).__name__}: {shorten(problem)}") from problem
        scores = scores_of(name, found, length)
        if missing := int(scores.isnan().sum()):
            raise BadInput(f"{name} returned {missing} scores that are nan: numbers, inf or -inf are needed")
        return scores


def selector(function: Callable[..., Any]) -> Select:
    """Register a function as a selector under its name, and return the selector.

    Raises BadInput for a function without a name, with other parameters, with the name of a shipped selector, or with
    the name and code of a registered function but other closure values.
    """
    name = getattr(function, "__name__", "")
    if not name.isidentifier():
        raise BadInput(f"select is {name or kind_of(function)}, which has no name for the results: write it with def")
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some functions in C
        raise BadInput(f"select is {name}, whose parameters cannot be inspected: {NEEDED}") from None
    needed = [
        each
        for each in parameters
        if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]
    if len(needed) not in (1, 3) or any(each.kind not in PLACES for each in needed):
        raise BadInput(f"select is {name}({', '.join(each.name for each in needed)}): {NEEDED}")
    known = own.registered_class("select", name)
    if known is not None and getattr(known, "function", None) is function:
        return known()
    if known is not None and _differs(getattr(known, "function", None), function):
        raise BadInput(
            f"select is another {name} than the one before, over other values: give it a __name__ of its own"
        )
    about = {"function": staticmethod(function), "reads_cache": len(needed) == 3, "__doc__": function.__doc__}
    about["__module__"] = function.__module__
    made: type[FunctionSelect] = dataclass(frozen=True)(type(name, (FunctionSelect,), about))
    own.register(made)
    return made()


def is_function(spec: str) -> bool:
    """Return whether a selector's spec is a function that is known to this process only."""
    found = own.registered_class("select", registry.parse(spec)[0])
    return found is not None and issubclass(found, FunctionSelect) and not own.in_file(found)


def scores_of(name: str, given: Any, length: int) -> Tensor:
    """Convert a function's result to scores [length]. Raises BadInput if it is neither scores nor token indices."""
    try:
        values = torch.as_tensor(given).detach().cpu()
    except (TypeError, ValueError, RuntimeError):
        raise BadInput(f"{name} returned {format_value(given)}: {RETURNED}") from None
    if values.dim() != 1 or values.is_complex() or values.dtype == torch.bool:
        kind = f"{values.dtype}".removeprefix("torch.")
        raise BadInput(f"{name} returned {kind} of shape {tuple(values.shape)}: {RETURNED}")
    if values.is_floating_point() and len(values):
        if len(values) != length:
            raise BadInput(f"{name} returned {len(values)} scores for {length} context tokens: one each is needed")
        return values.float()
    scores = torch.full((length,), -torch.inf)
    if not len(values):
        return scores
    if not 0 <= int(values.min()) <= int(values.max()) < length:
        raise BadInput(
            f"{name} returned tokens {int(values.min())} to {int(values.max())}: allowed are 0 to {length - 1}"
        )
    if len(values.unique()) != len(values):
        raise BadInput(f"{name} returned a token more than once: each of them once is needed")
    scores[values.long()] = torch.arange(len(values), 0, -1).float()
    return scores


def _differs(known: Any, function: Any) -> bool:
    """Return whether two functions share their code but not their captured values, like functions made in a loop."""
    if known is None or known is function or getattr(known, "__code__", known) is not getattr(function, "__code__", 0):
        return False
    captured, other = ([id(cell.cell_contents) for cell in f.__closure__ or ()] for f in (known, function))
    return bool(known.__defaults__ != function.__defaults__ or captured != other)
