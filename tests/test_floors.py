"""The house: a folder imports only folders to its left, and files of one policy folder never meet."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

FOLDERS = "core kernels data models engine store methods metrics results experiments training plots app".split()
MOST = 15  # modules in a folder
STRANGERS = {"training", "plots"}  # neither imports the other
POLICIES = [f"methods/{name}" for name in ("modes", "prepare", "select", "correct", "attend", "sparse")]
POLICIES += ["models/families"]

ROOT = Path(__file__).parents[1]
HOUSE = ROOT / "workbench"
FILES = sorted([*HOUSE.glob("*/**/*.py"), *(ROOT / "kernels").glob("**/*.py")])


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imported(path: Path) -> Iterator[str]:
    """Modules of this package that a file names: in any import, and in any text that is the name of a module."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: write imports in full"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Constant) and re.fullmatch(r"workbench(\.(?!json$)\w+)+\.?", str(node.value)):
            yield str(node.value)


def allowed(here: str, there: str) -> bool:
    """Whether a file of folder `here` may import folder `there`."""
    if here == "kernels":
        return there in ("core", "kernels")
    return FOLDERS.index(there) <= FOLDERS.index(here) and {here, there} != STRANGERS


def test_every_folder_is_in_the_line():
    found = {path.name for path in HOUSE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert found == set(FOLDERS)
    assert {path.name for path in HOUSE.glob("*.py")} == {"__init__.py", "__main__.py"}


def test_a_folder_imports_only_folders_to_its_left():
    for path in FILES:
        parts = path.relative_to(ROOT).parts
        here = parts[1] if parts[0] == "workbench" else parts[0]
        assert here in FOLDERS, f"there is no folder {here!r}"
        for name in imported(path):
            if name.startswith("workbench."):
                there = name.split(".")[1]
                assert there in FOLDERS, f"{path}: {name}: import it from the folder that defines it"
                assert allowed(here, there), f"{path} of {here} imports {there}, which is to its right"


@pytest.mark.parametrize("folder", POLICIES)
def test_files_of_a_policy_folder_never_meet(folder):
    package, files = f"workbench.{folder.replace('/', '.')}.", sorted((HOUSE / folder).glob("[!_]*.py"))
    assert files, f"workbench/{folder} is empty"
    for path in files:
        for name in imported(path):
            sibling = name.removeprefix(package).split(".")[0] if name.startswith(package) else ""
            assert not (HOUSE / folder / f"{sibling}.py").is_file() or sibling.startswith("_"), f"{path} imports {name}"


def test_a_folder_holds_about_a_dozen_modules():
    folders = {path.parent for path in FILES}
    sizes = {folder: len([path for path in folder.glob("*.py") if path.name != "__init__.py"]) for folder in folders}
    assert {folder: size for folder, size in sizes.items() if size > MOST} == {}


def test_the_formatter_formats():
    """Parameters of kernels are many; everything else is laid out by the formatter."""
    assert sum(path.read_text().count("fmt: " + "skip") for path in FILES) < 40


def test_no_class_name_stands_twice():
    names = Counter((node.name, path) for path in FILES for node in parsed(path).body if isinstance(node, ast.ClassDef))
    twice = Counter(name for name, _ in names)
    assert {name for name, count in twice.items() if count > 1 and not name.startswith("_")} == set()


def test_the_folder_of_kernels_hides_no_other_package():
    assert not (ROOT / "kernels" / "__init__.py").exists(), "it would hide the package 'kernels' of Hugging Face"
