"""API reference from signatures and docstrings: one page a folder, read from the source without importing it."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import griffe

from workbench.app.docs_text import markdown

FOLDERS = "core kernels data models engine store methods metrics experiments training plots app".split()
PARTS = (griffe.Class, griffe.Function)


@cache
def package(root: Path, name: str = "workbench") -> griffe.Module:
    """Read a package in the folder `root`."""
    found = griffe.load(name, search_paths=[str(root)], submodules=True, allow_inspection=False)
    assert isinstance(found, griffe.Module)
    return found


def pages(root: Path) -> Iterator[tuple[str, str]]:
    """Yield name and text of every page: `index`, then one a folder."""
    yield "index", _index(root)
    for folder in FOLDERS:
        top = package(root, "kernels") if folder == "kernels" else package(root)[folder]
        yield folder, "\n\n".join([f"# workbench.{folder}", _head(top), *_modules(top)])


def _index(root: Path) -> str:
    entries = "\n".join(FOLDERS)
    said = "Public functions and classes, by folder; a folder imports only folders to its left (`ARCHITECTURE.md`)."
    short = package(root).docstring
    head = markdown(short.value) if short else ""
    return f"# API reference\n\n{said}\n\n{head}\n\n```{{toctree}}\n:titlesonly:\n\n{entries}\n```\n"


def _head(part: griffe.Object) -> str:
    return markdown(part.docstring.value) if part.docstring else ""


def _modules(top: griffe.Module) -> Iterator[str]:
    """Yield text of the public modules below `top`, each under a heading."""
    yield from _parts(top)
    for module in sorted(top.modules.values(), key=lambda each: each.name):
        if not module.name.startswith("_") and not module.is_alias:
            yield f"## {_path(module)}"
            yield _head(module)
            yield from _modules(module)


def _parts(module: griffe.Module) -> Iterator[str]:
    """Yield functions and classes that a module defines and describes."""
    for part in module.members.values():
        if isinstance(part, PARTS) and _is_told(part):
            yield _entry(part)


def _is_told(part: griffe.Object) -> bool:
    return not part.name.startswith("_") and part.docstring is not None


def _entry(part: griffe.Object, fence: str = "::::") -> str:
    """A directive of Sphinx with the signature and the docstring, for a class with those of its public methods."""
    inner = []
    if isinstance(part, griffe.Class):
        inner = [_entry(each, ":::") for each in part.members.values() if isinstance(each, PARTS) and _is_told(each)]
        kind = "py:class"
    else:
        kind = "py:method" if part.is_function and isinstance(part.parent, griffe.Class) else "py:function"
    name = part.name if kind == "py:method" else _path(part)
    body = "\n\n".join([_head(part), *inner])
    return f"{fence}{{{kind}}} {name}{_signature(part)}\n{body}\n{fence}"


def _signature(part: griffe.Object) -> str:
    """Return parameters with their defaults; annotations are left to the docstrings and the source."""
    shown = []
    for each in getattr(part, "parameters", ()):
        star = {"variadic positional": "*", "variadic keyword": "**"}.get(getattr(each.kind, "value", ""), "")
        if each.name != "self":
            default = f"={each.default}" if each.default is not None and not star else ""
            shown.append(f"{star}{each.name}{default}")
    return f"({', '.join(shown)})" if shown or isinstance(part, griffe.Function) else ""


def _path(part: griffe.Object) -> str:
    return part.path if part.path.startswith("workbench") else f"workbench.{part.path}"
