"""Check fields, options and parameters against their type annotations.

Plain types are checked completely, lists including their elements; for callables only that they are callable, for
protocols only that the methods exist.
"""

import collections.abc
import math
import os
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cache, wraps
from inspect import signature
from numbers import Integral, Real
from typing import Annotated, Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from workbench.core.errors import BadInput, format_value, kind_of

WORDS = {bool: "True or False", float: "a number", int: "a whole number", str: "a text", type(None): "None"}
EACH = 8  # maximum processes per core
COUNT = "0 or more"


@dataclass(frozen=True)
class Requirement:
    """Description of what is allowed, for error messages; used in an `Annotated` type."""

    text: str


Count = Annotated[int, COUNT]
P = ParamSpec("P")
R = TypeVar("R")
LARGEST = (1 << 31) - 1  # of the magnitude of integers: positions and counts of kernels have 32 bits


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function to raise BadInput, with the name, for arguments that do not fit its annotations."""
    names = list(signature(function).parameters)

    @wraps(function)
    def called(*args: P.args, **options: P.kwargs) -> R:
        hints = _hints(function)
        for name, value in (*zip(names, args, strict=False), *options.items()):
            if name in hints:
                check(name, value, hints[name])
        return function(*args, **options)

    return called


def check_fields(instance: Any) -> None:
    """Raise BadInput for the first init field of a dataclass instance that does not fit its annotation."""
    cls: Any = type(instance)
    hints = _hints(cls)
    for field in (each for each in fields(instance) if each.init):
        check(field.name, getattr(instance, field.name), hints[field.name])


def check(name: str, value: Any, annotation: Any) -> None:
    """Raise BadInput, with the value and what is allowed, for a value that does not fit its annotation."""
    if fits_annotation(value, annotation):
        return
    if isinstance(value, int) and abs(value) > LARGEST:
        raise BadInput(f"{name} is {format_value(value)}: at most {LARGEST:,} is allowed")
    forms = any(isinstance(part, Requirement) for part in get_args(annotation))  # their repr is unreadable
    raise BadInput(f"{name} is {(kind_of if forms else format_value)(value)}: it must be {words(annotation)}")


def check_processes(name: str, count: Any, least: int = 1, here: bool = True) -> None:
    """Raise BadInput for fewer processes than `least`, or, on this machine (`here`), more than `EACH` per core."""
    most = EACH * (os.cpu_count() or 1) if here else LARGEST
    if not fits_annotation(count, int) or not least <= count <= most:
        raise BadInput(f"{name} is {format_value(count)}: allowed are {least} to {most} processes")


def fits_annotation(value: Any, annotation: Any) -> bool:
    """Return whether `value` fits `annotation`.

    Integers fit float, but bool fits neither int nor float; nan does not fit float; integers are at most 2^31 - 1.
    """
    if annotation is str:
        return isinstance(value, str)  # fast path for keys of requests
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return fits_annotation(value, parts[0]) and (COUNT not in parts or value >= 0)
    if origin in (Union, types.UnionType):
        return any(fits_annotation(value, part) for part in parts)
    if origin is Literal:
        return any(value == part and type(value) is type(part) for part in parts)
    if annotation is Any or isinstance(annotation, TypeVar | str):
        return True
    kind = plain(annotation)
    if kind is float:
        return not isinstance(value, bool) and isinstance(value, Real) and not math.isnan(value)
    if kind is int:
        return not isinstance(value, bool) and isinstance(value, Integral) and abs(int(value)) <= LARGEST
    if kind is collections.abc.Callable:
        return callable(value)
    if getattr(kind, "_is_protocol", False) and not issubclass(kind, collections.abc.Sized | collections.abc.Iterable):
        public = [name for name in vars(kind) if not name.startswith("_") or name == "__call__"]
        return all(hasattr(value, name) for name in public if callable(getattr(kind, name)))
    if isinstance(value, str | bytes) and kind not in (str, bytes, object):
        return False  # a string is no list of characters
    if kind is collections.abc.Iterable and getattr(value, "shape", None) == ():
        return False  # a zero-dimensional array
    return isinstance(value, kind) and _elements_fit(value, kind, parts)


def words(annotation: Any) -> str:
    """Describe what an annotation allows, for error messages."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        text = next((part.text for part in parts if isinstance(part, Requirement)), "")
        return text or words(parts[0]) + f", {COUNT}" * (COUNT in parts)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(map(words, parts)))
    if origin is Literal:
        return f"one of {', '.join(map(str, parts))}"
    kind = plain(annotation)
    if kind in (list, tuple, collections.abc.Sequence, collections.abc.Iterable) and parts:
        return f"a list, each {words(parts[0])}"
    if kind is collections.abc.Callable:
        return "a function"
    return WORDS.get(kind, f"a {getattr(kind, '__name__', kind)}")


def plain(annotation: Any) -> Any:
    """Return the type of an annotation without its parameters; NoneType for None."""
    return get_origin(annotation) or (type(None) if annotation is None else annotation)


def _elements_fit(value: Any, kind: Any, parts: tuple[Any, ...]) -> bool:
    if not parts or isinstance(value, str):
        return True
    if kind is tuple and Ellipsis not in parts:
        return len(value) == len(parts) and all(map(fits_annotation, value, parts))
    if isinstance(value, Mapping):
        return all(fits_annotation(key, parts[0]) and fits_annotation(each, parts[1]) for key, each in value.items())
    if kind not in (list, tuple, collections.abc.Sequence):
        return True
    if parts[0] not in (int, float) and {*map(type, value)} == {parts[0]}:
        return True  # fast path for long lists of blocks
    return all(fits_annotation(each, parts[0]) for each in value)


@cache
def _hints(of: Any) -> dict[str, Any]:
    return get_type_hints(of, include_extras=True)
