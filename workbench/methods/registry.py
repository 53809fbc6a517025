"""Policies by name: one frozen dataclass a file, found in the package's folders; users' own are in `own`.

The class is named after its file (`first_k.py` has `FirstK`), with a suffix if two folders have a policy of the same
name (`OracleTiles`, `OracleTokens`). Its fields are its options:

    with_neighbours                    the file's class with its defaults
    with_neighbours(n=4, embedder=minilm)      … with options; a word or a path needs no quotation marks
"""

import re
from collections.abc import Callable, Collection
from dataclasses import MISSING, Field, field, fields, is_dataclass
from importlib import import_module
from importlib.util import find_spec
from keyword import iskeyword
from math import inf
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

from workbench.core import spec_parser
from workbench.core.errors import BadInput, meant, not_allowed, shown
from workbench.core.utils import annotations
from workbench.methods import own


def names(package: str) -> list[str]:
    """Return the policies of a package, from its file names (it is not imported) and the users' own."""
    return sorted({*shipped(package), *own.names(package)})


def shipped(package: str) -> list[str]:
    """Return the shipped policies of a package, from its file names; it is not imported."""
    spec = find_spec(package)
    folders = (spec.submodule_search_locations if spec else None) or []
    return sorted(path.stem for folder in folders for path in Path(folder).glob("[!_]*.py"))


def made(package: str, spec: str, **given: Any) -> Any:
    """Return the policy that `spec` describes; of the values `given`, it gets those that it has fields for.

    Raises BadInput for an unknown name or option, and for a value that the policy refuses.
    """
    policy, options = found(package, spec, given)
    takes = [field.name for field in fields(policy) if field.init]
    every = options | {option: value for option, value in given.items() if option in takes}
    if lacking := [name for name in required(policy) if name not in every]:
        raise BadInput(f"{parse(spec)[0]} needs a {lacking[0]}, which its name cannot say: none is given here")
    return policy(**every)


def check_spec(package: str, spec: str, **given: Any) -> None:
    """Raise BadInput for a spec that cannot make a policy."""
    policy, options = found(package, spec, given)
    if not (lacking := set(required(policy)) - {*options, *given}):
        made(package, spec, **given)
        return
    for declared in fields(policy):
        if declared.name in options and declared.name not in lacking:
            check_value(policy, declared, options[declared.name])


def said(policy: type) -> list[Field[Any]]:
    """Return the fields of a policy that a spec may set."""
    return [each for each in fields(policy) if each.init and each.repr]


def required(policy: type) -> list[str]:
    """Return the names of fields without a default."""
    return [each.name for each in fields(policy) if each.init and each.default is each.default_factory is MISSING]


def found(package: str, spec: str, given: Collection[str] = ()) -> tuple[type, dict[str, Any]]:
    """Return class and options of a spec. Raises BadInput for options named in `given`, which a spec must not set."""
    name, options = check_name(package, spec)
    policy = own.policy(package, name) or _policy(import_module(f"{package}.{name}"), name)
    check_known(package, name, policy, options, given)
    return policy, options


def check_known(package: str, name: str, policy: type, options: Collection[str], given: Collection[str] = ()) -> None:
    """Raise BadInput for an option that a policy does not have, or that a spec must not set."""
    allowed = [field.name for field in said(policy) if field.name not in given]
    if unknown := [option for option in options if option not in allowed]:
        kind = package.rpartition(".")[2].removesuffix("s")
        names = f"{', '.join(allowed) or 'it has no options'}{meant(unknown[0], allowed)}"
        raise BadInput(f"{kind} {name!r} has no option {unknown[0]!r}; allowed: {names}")


def check_name(package: str, spec: str) -> tuple[str, dict[str, Any]]:
    """Return name and options of a spec, without importing the policy. Raises BadInput for an unknown name."""
    name, options = parse(spec)
    if name not in (known := names(package)):
        raise not_allowed(package.rpartition(".")[2], name, known)
    return name, options


def parse(spec: str) -> tuple[str, dict[str, Any]]:
    """Return name and options of a spec (`core.spec_parser`); earlier names of policies are replaced."""
    return spec_parser.parse(spec.strip())


def spec_of(policy: Any) -> str:
    """Return the full spec of a policy, as `with_neighbours(n=10, embedder=tfidf)`, without fields that lack a repr."""
    name = own.name_of(policy) or type(policy).__module__.rpartition(".")[2]
    options = [f"{each.name}={_plain(getattr(policy, each.name))}" for each in said(type(policy))]
    return f"{name}({', '.join(options)})" if options else name


def option(default: Any, check: Callable[[str, Any], None]) -> Any:
    """Declare an option of a policy; `check(name, value)` raises BadInput for an invalid value (`check_options`)."""
    return field(default=default, metadata={"check": check})


def ruled(default: Any, rule: str, fits: Callable[[Any], Any]) -> Any:
    """Declare an option that is refused as "NAME is VALUE: RULE" unless `fits(value)`."""

    def check(name: str, value: Any) -> None:
        try:
            allowed = fits(value)
        except TypeError:  # a type that the rule does not apply to
            allowed = False
        if not allowed:
            raise BadInput(f"{name} is {shown(value)}: {rule}")

    return option(default, check)


def whole(default: int | None, rule: str, least: int = 0) -> Any:
    """Declare an option that is an integer of at least `least`; None is allowed if it is the default."""
    return ruled(default, rule, lambda value: value is default is None or is_whole(value, least))


def is_number(value: Any, least: float = 0, most: float = inf) -> bool:
    """Return whether a value is a number from `least` to `most`."""
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most


def share(default: float) -> Any:
    """Declare an option that is a share, from 0 to 1."""
    return ruled(default, "it is a share, from 0 to 1", lambda value: is_number(value, most=1))


def positive(default: float) -> Any:
    """Declare an option that is a number above 0."""
    return ruled(default, "it is above 0", lambda value: is_number(value) and 0 < value < inf)


def system_blocks() -> Any:
    """Declare the option `system`: the number of leading blocks of a prompt that are not passages."""
    return whole(1, "how many blocks at the front are no passages, 0 or more")


def is_whole(value: Any, least: int = 0) -> bool:
    """Return whether a value is an integer of at least `least`."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def check_options(policy: Any) -> None:
    """Raise BadInput for the first option of a policy that its declaration or annotation does not allow."""
    for declared in fields(policy):
        if check := declared.metadata.get("check"):
            check(declared.name, getattr(policy, declared.name))
    annotations.check_fields(policy)


def check_value(policy: type, declared: Field[Any], value: Any) -> None:
    """Raise BadInput for a value that an option of a policy does not allow."""
    if check := declared.metadata.get("check"):
        check(declared.name, value)
    annotations.check(declared.name, value, get_type_hints(policy)[declared.name])


def _policy(module: ModuleType, name: str) -> type:
    """Return the dataclass of a module that is named after its file."""
    return next(x for x in vars(module).values() if carries(x, name) and x.__module__ == module.__name__)


def carries(found: Any, name: str) -> bool:
    """Return whether a dataclass is named after a file: `first_k` → `FirstK`, a Python keyword `none` → `None_`."""
    camel = name.title().replace("_", "")
    begin = f"{camel}_" if iskeyword(camel) else camel
    return isinstance(found, type) and is_dataclass(found) and found.__name__.startswith(begin)


def _plain(value: Any) -> str:
    if is_dataclass(value):
        return spec_of(value)
    return value if isinstance(value, str) and re.fullmatch(r"\w+", value) else repr(value)
