"""Check the options of policies without importing them: their files are parsed, so errors do not wait for torch.

Field declarations are evaluated with the functions and constants of the policy's file and of the folder's `__init__`.
A check that needs a heavy import is left to the policy itself.
"""

import __future__

import ast
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields, is_dataclass, make_dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any

from workbench.methods import registry

LIGHT = ("workbench.core.errors", "workbench.data.embedders", registry.__name__, __name__)
FLAGS = __future__.annotations.compiler_flag  # do not evaluate annotations of functions


def check(package: str, spec: str) -> None:
    """Raise BadInput for a spec with an unknown policy, an unknown option, or an invalid value."""
    name, options = registry.check_name(package, spec)
    if name not in registry.shipped(package):
        return  # a user policy, which is imported
    policy = fields_only(package, name)
    registry.check_known(package, name, policy, options)
    for field in fields(policy):
        if field.name in options:
            with suppress(NameError):
                registry.check_value(policy, field, options[field.name])
    values = SimpleNamespace(**{field.name: field.default for field in fields(policy)} | options)
    for rule in _rules(package, name, policy.__name__):
        with suppress(NameError, AttributeError):
            exec(rule, _known(package, name) | {"self": values})


def fields_only(package: str, name: str) -> type:
    """Return a dataclass with the fields of a policy, and nothing else of it."""
    return next(made for made in reversed(_known(package, name).values()) if registry.is_policy_of(made, name))


@cache
def _known(package: str, name: str) -> dict[str, Any]:
    """Return the functions, constants and dataclasses that a policy's folder and file define without heavy imports."""
    known: dict[str, Any] = {}
    for node in sorted(_statements(package, name), key=lambda node: isinstance(node, ast.ClassDef)):
        if isinstance(node, ast.ClassDef):
            known[node.name] = _fields(node, known)
        elif isinstance(node, ast.FunctionDef | ast.Assign | ast.ImportFrom):
            with suppress(NameError):
                exec(compile(ast.Module([node], []), name, "exec", FLAGS), known)
    return known


@cache
def _rules(package: str, name: str, policy: str) -> list[CodeType]:
    """Compile a policy's checks across options: the unconditional `check_…` lines of `__post_init__`."""
    classes = [node for node in _statements(package, name) if isinstance(node, ast.ClassDef) and node.name == policy]
    begins = [part for node in classes for part in node.body if getattr(part, "name", "") == "__post_init__"]
    lines = [line for part in begins if isinstance(part, ast.FunctionDef) for line in part.body]
    checks = [line for line in lines if isinstance(line, ast.Expr) and ast.unparse(line).startswith("check_")]
    return [compile(ast.Module([line], []), name, "exec") for line in checks if "(self)" not in ast.unparse(line)]


def _statements(package: str, name: str) -> Iterator[ast.stmt]:
    """Yield the statements of a policy's folder and file, without heavy imports."""
    spec = find_spec(package)
    for folder in (spec.submodule_search_locations if spec else None) or []:
        for file in ("__init__", name):
            for node in ast.parse((Path(folder) / f"{file}.py").read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ImportFrom) and node.module:
                    node.names = [each for each in node.names if _is_light(node.module, each.name)]
                    if not node.names:
                        continue
                yield node


def _is_light(module: str, name: str) -> bool:
    """Return whether a name can be imported from a module without a heavy import."""
    return module.partition(".")[0] in sys.stdlib_module_names or module in LIGHT or f"{module}.{name}" in LIGHT


def _fields(node: ast.ClassDef, known: dict[str, Any]) -> type:
    """Return a dataclass with the fields of a class and its bases."""
    declarations: list[tuple[str, Any, Any]] = []
    for each in node.body:
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            kind, default = _value(each.annotation, known, Any), _value(each.value, known, None)
            declarations.append((each.target.id, kind, default))
    named = (known.get(base.id) for base in node.bases if isinstance(base, ast.Name))
    bases = tuple(base for base in named if isinstance(base, type) and is_dataclass(base))
    return make_dataclass(node.name, declarations, bases=bases, kw_only=True)


def _value(node: ast.expr | None, known: dict[str, Any], otherwise: Any) -> Any:
    """Evaluate an expression; return `otherwise` if it uses a name that is not imported."""
    try:
        return eval(compile(ast.Expression(node), "declared", "eval"), known) if node else otherwise
    except NameError:
        return otherwise
