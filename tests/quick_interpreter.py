"""Triton's interpreter looks through all of Triton's language at every call of a function; here it looks once."""

import inspect
from functools import cache


def install() -> None:
    """Let the interpreter remember which names of a module it replaces; without Triton, do nothing."""
    try:
        import triton.language as tl
        from triton.runtime import interpreter
    except ImportError:
        return
    is_builtin, replace = tl.core.is_builtin, interpreter._patch_attr

    @cache
    def builtins(place: object) -> list[str]:
        return [name for name, member in inspect.getmembers(place) if is_builtin(member)]

    def patch_builtin(place: object, *rest: object) -> None:
        for name in builtins(place):
            if is_builtin(member := getattr(place, name)):  # else it is replaced already
                replace(place, name, member, *rest)

    for place in (tl, tl.core, tl.math, tl.tensor, tl.core.tensor_descriptor_base):
        builtins(place)
    interpreter._patch_builtin = patch_builtin
