"""Names of earlier versions: a renamed field, attribute or argument still answers to its old name."""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, TypeVar

Named = TypeVar("Named", bound=Callable[..., Any])


def arguments(**today: str) -> Callable[[Named], Named]:
    """Let a function take keyword arguments by their old names: `@arguments(old="new")`."""

    def decorate(function: Named) -> Named:
        @wraps(function)
        def call(*args: Any, **given: Any) -> Any:
            return function(*args, **{today.get(name, name): value for name, value in given.items()})

        return call  # type: ignore[return-value]

    return decorate


def fields(**today: str) -> Callable[[type], type]:
    """Let a class take and show fields by their old names: `@fields(old="new")` above `@dataclass`."""

    def decorate(cls: type) -> type:
        cls.__init__ = arguments(**today)(cls.__init__)  # type: ignore[misc]
        for old, new in today.items():
            setattr(cls, old, property(lambda self, new=new: getattr(self, new)))  # type: ignore[misc]
        return cls

    return decorate


# Policies: their specs stand in commands, notebooks, results and folders of cached blocks.
POLICIES = {"alone": "independent", "isolated": "after_system", "similar": "with_neighbours"}


EARLIER = {today: earlier for earlier, today in POLICIES.items()}


def spec(text: str, names: Mapping[str, str] = POLICIES) -> str:
    """The spec of a policy by its name today: `similar(n=4)` is `with_neighbours(n=4)`; by EARLIER the other way."""
    name, bracket, options = text.strip().partition("(")
    return f"{names[name]}{bracket}{options}" if name in names else text
