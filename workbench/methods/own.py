"""User policies from a file, a notebook cell, or entry points of installed packages.

    workbench trial --method-file last_tokens.py --select last_tokens
    Trial("lab-full", mode="block", select=LastTokens())

A file defines one or more policies: frozen dataclasses like those of `methods.select`, `prepare`, `correct`, `attend`
and `sparse`. Each is named after its class: `LastTokens` is `last_tokens`. A function of `prompt`, or of (model,
prompt, kv), is a selector under its own name (`own_function`), unless that begins with `_`. Packages declare policies
in `[project.entry-points."workbench.select"]`: `last_tokens = "its.module:LastTokens"` (or `.prepare`, `.sparse`, …).
"""

import inspect
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from functools import cache
from hashlib import sha256
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from workbench.core.errors import BadInput, format_value, shorten

FILES = "WORKBENCH_METHOD_FILES"  # environment variable with the paths, for child processes
BASES = {"select": "Select", "sparse": "Sparse", "correct": "Correct", "attend": "Attend"}
KINDS = (*BASES, "prepare")
FAULTS = (
    SyntaxError,
    ImportError,
    NameError,
    AttributeError,
    TypeError,
    ValueError,
    LookupError,
    ArithmeticError,
    OSError,
)
_known: dict[str, dict[str, type]] = {kind: {} for kind in KINDS}
_read: dict[Path, int] = {}  # file → modification time of the version that was read


def use(paths: Sequence[Path] | None) -> Sequence[Path] | None:
    """Register the policies of files, in this process and its child processes; return `paths`.

    Raises BadInput for a file that is missing, raises an exception, or has no policy.
    """
    for path in paths or ():
        file = os.path.realpath(path)  # also resolves a link to itself
        _load(Path(file))
        if file not in os.environ.get(FILES, "").split(os.pathsep):
            os.environ[FILES] = os.pathsep.join(filter(None, (os.environ.get(FILES), file)))
    return paths


def files() -> list[Path]:
    """Return the files whose policies are registered."""
    return [Path(path) for path in os.environ.get(FILES, "").split(os.pathsep) if path]


def registered_policies(paths: Sequence[Path] | None) -> list[tuple[str, str]]:
    """Return (kind, name) of the policies that were registered from these files (`use`)."""
    modules = {_module(path.resolve()) for path in paths or ()}
    known = ((kind, name, found) for kind, policies in _known.items() for name, found in policies.items())
    return [(kind, name) for kind, name, found in known if found.__module__ in modules]


def in_file(policy: type) -> bool:
    """Return whether a policy was registered from a file, which other processes can read."""
    return policy.__module__ in {_module(path) for path in files()}


def installed() -> list[tuple[str, str]]:
    """Return (kind, name) of the policies of installed packages."""
    return [(kind, name) for kind in KINDS for name in _entries(kind)]


def versions() -> dict[str, str]:
    """Return {file name: first 12 digits of its SHA-256} of registered files, for records."""
    return {path.name: sha256(path.read_bytes()).hexdigest()[:12] for path in files()}


def names(package: str) -> list[str]:
    """Return the names of user policies of a kind, such as `workbench.methods.select`, without importing packages."""
    kind = package.rpartition(".")[2]
    return [*_policies(kind), *_entries(kind)] if kind in KINDS else []


def policy(package: str, name: str) -> type | None:
    """Return the class of a user policy; None for another name."""
    kind = package.rpartition(".")[2]
    found = _policies(kind).get(name) if kind in KINDS else None
    if found is None and kind in KINDS and (entry := _entries(kind).get(name)):
        found = entry.load()
        if _kind(found) != kind:
            raise BadInput(f"entry point {entry.value!r} of workbench.{kind} is no policy of that kind")
        _known[kind][name] = found
    return found


def registered_class(kind: str, name: str) -> type | None:
    """Return the class of a policy that is registered in this process; None for another name."""
    return _known[kind].get(name)


def register(found: type) -> str:
    """Register a policy under a name derived from its class, and return the name."""
    kind, name = _kind(found), _name(found)
    if not kind:
        raise BadInput(
            f"{format_value(found)} is no policy: a frozen dataclass is needed that extends Select, Sparse, Correct or "
            "Attend, or whose objects are called with (model, prompts, store)"
        )
    module = f"workbench.methods.{kind}"
    if (Path(import_module(module).__path__[0]) / f"{name}.py").is_file():
        raise BadInput(f"{kind} has a policy {name!r} already: give {found.__name__} another name")
    _known[kind][name] = found
    return name


def state(kind: str, spec: str) -> str:
    """Return a code hash of a policy that a cell or a package defines; "" for any other, whose file is hashed."""
    found = _known[kind].get(spec.partition("(")[0]) if kind in KINDS else None
    if found is None or in_file(found):
        return ""
    return sha256("\n".join(_code(found)).encode()).hexdigest()[:16]


def _code(of: Any) -> Iterator[str]:
    """Yield the code of a class, function or constant as strings that are equal in all processes."""
    if isinstance(of, staticmethod | classmethod):
        of = of.__func__
    if isinstance(of, type):
        for name, part in sorted(vars(of).items()):
            if name == "__call__" or not name.startswith("__"):
                yield name
                yield from _code(part)
    elif isinstance(of, FunctionType):
        yield from _code(of.__code__)
        yield repr(of.__defaults__)
        for cell in of.__closure__ or ():
            yield from _code(cell.cell_contents)
    elif isinstance(of, CodeType):
        yield of.co_code.hex()
        yield " ".join(of.co_names)
        for constant in of.co_consts:
            yield from _code(constant)
    elif isinstance(of, frozenset | set):
        yield repr(sorted(map(repr, of)))
    elif of is None or isinstance(of, str | bytes | int | float | complex | tuple | list | dict):
        yield repr(of)
    else:
        yield type(of).__qualname__


def name_of(made: Any) -> str:
    """Return the name of a user policy object; "" for one of this package."""
    return next((name for known in _known.values() for name, found in known.items() if found is type(made)), "")


def _policies(kind: str) -> Mapping[str, type]:
    for path in files():
        _load(path)
    return _known[kind]


@cache
def _entries(kind: str) -> Mapping[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=f"workbench.{kind}")}


def _load(path: Path) -> None:
    try:
        changed = path.stat().st_mtime_ns
    except OSError:
        raise BadInput(f"method file {shorten(path)} is not there") from None
    if _read.get(path) == changed:
        return
    spec = spec_from_file_location(_module(path), path)
    if path.suffix != ".py" or spec is None or spec.loader is None:
        raise BadInput(f"method file {shorten(path)}: a Python file, name.py, is needed")
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except FAULTS as problem:
        raise BadInput(f"method file {shorten(path)} fails: {type(problem).__name__}: {shorten(problem)}") from problem
    policies = [x for x in vars(module).values() if inspect.isclass(x) and x.__module__ == spec.name and _kind(x)]
    functions = [x for name, x in vars(module).items() if name[0] != "_" and _selects(x) and x.__module__ == spec.name]
    if not policies and not functions:
        raise BadInput(
            f"method file {shorten(path)} holds no policy: a frozen dataclass that extends Select or another, or a "
            "function of (prompt) or (model, prompt, kv)"
        )
    for each in policies:
        register(each)
    for function in functions:
        import_module("workbench.methods.own_function").selector(function)
    _read[path] = changed


def _selects(found: Any) -> bool:
    """Return whether an object is a function with the parameter names of a selector."""
    if not isinstance(found, FunctionType):
        return False
    parameters = inspect.signature(found).parameters.values()
    return [each.name for each in parameters if each.default is each.empty] in (["prompt"], ["model", "prompt", "kv"])


def _module(path: Path) -> str:
    return f"workbench_own_{path.stem}"


def _name(found: type) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", found.__name__).lower()


def _kind(found: Any) -> str:
    if not inspect.isclass(found) or not is_dataclass(found):
        return ""
    for kind, base in BASES.items():
        if issubclass(found, getattr(import_module(f"workbench.methods.{kind}"), base)):
            return kind
    call = next((vars(each)["__call__"] for each in found.__mro__ if "__call__" in vars(each)), None)
    return "prepare" if call is not None and len(inspect.signature(call).parameters) == 4 else ""
