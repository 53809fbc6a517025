"""Names of earlier versions: a renamed field, attribute or argument still answers to its old name."""

import sys
from collections.abc import Callable, Mapping
from functools import wraps
from importlib import import_module
from operator import attrgetter
from typing import Any, TypeVar, cast

Named = TypeVar("Named", bound=Callable[..., Any])


def arguments(**today: str) -> Callable[[Named], Named]:
    """Let a function take keyword arguments by their old names: `@arguments(old="new")`."""

    def decorate(function: Named) -> Named:
        @wraps(function)
        def call(*args: Any, **given: Any) -> Any:
            return function(*args, **{today.get(name, name): value for name, value in given.items()})

        return cast(Named, call)

    return decorate


def fields(**today: str) -> Callable[[type], type]:
    """Let a class take and show fields by their old names: `@fields(old="new")` above `@dataclass`."""

    def decorate(cls: type) -> type:
        renaming: Any = cls
        renaming.__init__ = arguments(**today)(renaming.__init__)
        for old, new in today.items():
            setattr(cls, old, property(attrgetter(new)))
        return cls

    return decorate


def elsewhere(module: str, **today: str) -> None:
    """Let a module answer to names that it held in earlier versions: `elsewhere(__name__, name="module that has it")`.

    "module:name" where the name is another one there. The module is imported when such a name is asked for.
    """

    def find(name: str) -> Any:
        if name not in today:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        place, _, there = today[name].partition(":")
        return getattr(import_module(place), there or name)

    vars(sys.modules[module])["__getattr__"] = find


# Workloads and methods of reports: measured under a name that is a word of earlier versions.
LABELS = {"computed again": "recomputed", "turned": "rerotated", ", moved": ", shifted"}


def label(text: str) -> str:
    """Return a name from a report in the words of today: "30% of 27K computed again" is "30% of 27K recomputed"."""
    for earlier, today in LABELS.items():
        text = text.replace(earlier, today)
    return text


# Policies: their specs stand in commands, notebooks, results and folders of cached blocks.
POLICIES = {"alone": "independent", "isolated": "after_system", "similar": "with_neighbours"}


EARLIER = {today: earlier for earlier, today in POLICIES.items()}


def spec(text: str, names: Mapping[str, str] = POLICIES) -> str:
    """Return the spec of a policy by its name today: `similar(n=4)` is `with_neighbours(n=4)`.

    By EARLIER the other way.
    """
    name, bracket, options = text.strip().partition("(")
    return f"{names[name]}{bracket}{options}" if name in names else text
