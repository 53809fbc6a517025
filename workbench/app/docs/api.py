"""API reference: one page a folder with Sphinx's `automodule` for each of its modules."""

from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules

FOLDERS = "core kernels data models engine store methods metrics results experiments training plots app".split()
COMMANDS = "workbench.app.commands"  # `workbench --help` tells what they take
MODULE = "## {name}\n\n```{{eval-rst}}\n.. automodule:: {name}\n   :members:\n   :ignore-module-all:\n```"


def pages() -> Iterator[tuple[str, str]]:
    """Yield name and text of every page: `index`, then one a folder."""
    entries = "\n".join(FOLDERS)
    said = "Public functions and classes, by folder; a folder imports only folders to its left (`ARCHITECTURE.md`)."
    yield "index", f"# API reference\n\n{said}\n\n```{{toctree}}\n:titlesonly:\n\n{entries}\n```\n"
    for folder in FOLDERS:
        modules = [MODULE.format(name=name) for name in modules_of(f"workbench.{folder}")]
        yield folder, "\n\n".join([f"# workbench.{folder}", *modules])


def modules_of(package: str) -> Iterator[str]:
    """Yield the names of a package and of the public modules below it."""
    yield package
    for module in sorted(iter_modules(import_module(package).__path__), key=lambda each: each.name):
        name = f"{package}.{module.name}"
        if not module.name.startswith("_") and name != COMMANDS:
            yield from modules_of(name) if module.ispkg else [name]
