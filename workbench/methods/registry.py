"""Registry of policies: one frozen dataclass per file in the package's folders; user policies are in `own`.

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
from workbench.core.errors import BadInput, did_you_mean, format_value, not_allowed
from workbench.core.utils import annotations
from workbench.methods import own


def names(package: str) -> list[str]:
    """Return the policies of a package, from its file names (without importing it), and user policies."""
    return sorted({*shipped(package), *own.names(package)})


def shipped(package: str) -> list[str]:
    """Return the shipped policies of a package, from its file names, without importing it."""
    spec = find_spec(package)
    folders = (spec.submodule_search_locations if spec else None) or []
    return sorted(path.stem for folder in folders for path in Path(folder).glob("[!_]*.py"))


def make_policy(package: str, spec: str, **given: Any) -> Any:
    """Instantiate the policy that `spec` describes, with those of the values `given` that it has fields for.

    Raises BadInput for an unknown name or option, and for a value that the policy rejects.
    """
    policy, options = find_policy(package, spec, given)
    accepted = [field.name for field in fields(policy) if field.init]
    values = options | {option: value for option, value in given.items() if option in accepted}
    if lacking := [name for name in required_fields(policy) if name not in values]:
        raise BadInput(f"{parse(spec)[0]} needs a {lacking[0]}, which a spec cannot contain: none is given here")
    return policy(**values)


def check_spec(package: str, spec: str, **given: Any) -> None:
    """Raise BadInput for an invalid spec of a policy."""
    policy, options = find_policy(package, spec, given)
    if not (lacking := set(required_fields(policy)) - {*options, *given}):
        make_policy(package, spec, **given)
        return
    for declared in fields(policy):
        if declared.name in options and declared.name not in lacking:
            check_value(policy, declared, options[declared.name])


def spec_fields(policy: type) -> list[Field[Any]]:
    """Return the fields of a policy that a spec may set."""
    return [each for each in fields(policy) if each.init and each.repr]


def required_fields(policy: type) -> list[str]:
    """Return the names of fields without a default."""
    return [each.name for each in fields(policy) if each.init and each.default is each.default_factory is MISSING]


def find_policy(package: str, spec: str, given: Collection[str] = ()) -> tuple[type, dict[str, Any]]:
    """Return the class and options of a spec. Raises BadInput for options in `given`, which a spec must not set."""
    name, options = check_name(package, spec)
    policy = own.policy(package, name) or _policy(import_module(f"{package}.{name}"), name)
    check_known(package, name, policy, options, given)
    return policy, options


def check_known(package: str, name: str, policy: type, options: Collection[str], given: Collection[str] = ()) -> None:
    """Raise BadInput for an option that a policy lacks, or that a spec must not set."""
    allowed = [field.name for field in spec_fields(policy) if field.name not in given]
    if unknown := [option for option in options if option not in allowed]:
        kind = package.rpartition(".")[2].removesuffix("s")
        names = f"{', '.join(allowed) or 'it has no options'}{did_you_mean(unknown[0], allowed)}"
        raise BadInput(f"{kind} {name!r} has no option {unknown[0]!r}; allowed: {names}")


def check_name(package: str, spec: str) -> tuple[str, dict[str, Any]]:
    """Return the name and options of a spec, without importing the policy. Raises BadInput for an unknown name."""
    name, options = parse(spec)
    if name not in (known := names(package)):
        raise not_allowed(package.rpartition(".")[2], name, known)
    return name, options


def parse(spec: str) -> tuple[str, dict[str, Any]]:
    """Parse a spec to name and options (`core.spec_parser`); old names of policies are replaced by new ones."""
    return spec_parser.parse(spec.strip())


def spec_of(policy: Any) -> str:
    """Return the full spec of a policy, as `with_neighbours(n=10, embedder=tfidf)`, without fields of repr=False."""
    name = own.name_of(policy) or type(policy).__module__.rpartition(".")[2]
    options = [f"{each.name}={_plain(getattr(policy, each.name))}" for each in spec_fields(type(policy))]
    return f"{name}({', '.join(options)})" if options else name


def option(default: Any, check: Callable[[str, Any], None]) -> Any:
    """Declare an option of a policy; `check(name, value)` raises BadInput for an invalid value (`check_options`)."""
    return field(default=default, metadata={"check": check})


def option_where(default: Any, rule: str, fits: Callable[[Any], Any]) -> Any:
    """Declare an option that is rejected with "NAME is VALUE: RULE" unless `fits(value)`."""

    def check(name: str, value: Any) -> None:
        try:
            allowed = fits(value)
        except TypeError:  # the rule does not apply to this type
            allowed = False
        if not allowed:
            raise BadInput(f"{name} is {format_value(value)}: {rule}")

    return option(default, check)


def integer_option(default: int | None, rule: str, least: int = 0) -> Any:
    """Declare an option that is an integer of at least `least`; None is allowed if it is the default."""
    return option_where(default, rule, lambda value: value is default is None or is_whole(value, least))


def is_number(value: Any, least: float = 0, most: float = inf) -> bool:
    """Return whether a value is a number between `least` and `most`, inclusive."""
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most


def share(default: float) -> Any:
    """Declare an option that is a fraction, from 0 to 1."""
    return option_where(default, "it is a share, from 0 to 1", lambda value: is_number(value, most=1))


def positive(default: float) -> Any:
    """Declare an option that is a number above 0."""
    return option_where(default, "it is above 0", lambda value: is_number(value) and 0 < value < inf)


def system_blocks() -> Any:
    """Declare the option `system`: the number of leading blocks that are not passages."""
    return integer_option(1, "how many blocks at the front are no passages, 0 or more")


def is_whole(value: Any, least: int = 0) -> bool:
    """Return whether a value is an integer of at least `least`."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def check_options(policy: Any) -> None:
    """Raise BadInput for the first option of a policy that violates its declaration or annotation."""
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
    """Return the dataclass that is named after its module."""
    return next(x for x in vars(module).values() if is_policy_of(x, name) and x.__module__ == module.__name__)


def is_policy_of(found: Any, name: str) -> bool:
    """Return whether an object is the dataclass of a file: `first_k` → `FirstK`, a Python keyword `none` → `None_`."""
    camel = name.title().replace("_", "")
    begin = f"{camel}_" if iskeyword(camel) else camel
    return isinstance(found, type) and is_dataclass(found) and found.__name__.startswith(begin)


def _plain(value: Any) -> str:
    if is_dataclass(value):
        return spec_of(value)
    return value if isinstance(value, str) and re.fullmatch(r"\w+", value) else repr(value)
