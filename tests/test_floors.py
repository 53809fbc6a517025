"""The house: imports go strictly down, and files of one policy folder never meet."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "workbench"
FLOORS = [
    # floor 0
    ["errors", "freed", "whole"],
    ["assets", "blocks", "menu", "tiles", "kernels", "shipped"],
    ["grid", "tilewise"],
    ["keeping", "scores"],
    ["kv", "masks", "rope"],
    # floor 1
    ["plan", "rules", "segment", "executors"],
    # floor 2
    ["families", "data", "embedders"],
    ["attention", "layouts"],
    ["packed"],
    # floor 3
    ["probing", "models", "untrained", "reading", "corpus"],
    ["engine", "fused", "sessions"],
    ["chunked", "pool"],
    ["steps"],
    ["graphs"],
    ["decoding", "store", "paths", "weights"],
    ["gates"],
    # floor 4
    ["prepare", "select", "sparse"],
    ["methods", "editing"],
    ["generation"],
    ["metrics"],
    # floor 5
    ["record", "prepared", "lengths", "published", "training", "distill"],
    ["way"],
    ["trial", "results"],
    ["cases"],
    ["lab", "sweep", "turnover", "bench"],
    ["tuning"],
    ["timings", "ttft"],
    # floor 6
    ["plots", "pages"],
    ["notebook", "thumbnail", "comparison"],
    ["batch"],
    # floor 7
    ["explore", "report", "commands"],
    ["cli"],
    ["__main__"],
]
LEVEL = {name: level for level, names in enumerate(FLOORS) for name in names}
POLICIES = ("prepare", "select", "sparse", "families")
FILES = sorted(ROOT.rglob("*.py"))


def imported(path: Path):
    """Modules of this package that a file imports, in full, wherever in the file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "workbench":
            yield from (f"workbench.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: write imports in full"
            yield node.module or ""
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def place(path: Path) -> tuple[str, str]:
    """(name on the list of floors, file within its folder)"""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[0], parts[1] if len(parts) > 1 else ""


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_down(path):
    here, _ = place(path)
    if here == "__init__":  # the nouns and the verbs, from every floor
        return
    assert here in LEVEL, f"workbench/{here} stands on no floor: add it to FLOORS"
    for name in imported(path):
        if name.startswith("workbench."):
            there = name.split(".")[1]
            assert there == here or LEVEL[there] < LEVEL[here], f"{here} imports {there}: imports go strictly down"


@pytest.mark.parametrize("folder", POLICIES)
def test_files_of_a_policy_folder_never_meet(folder):
    for path in ROOT.glob(f"{folder}/[!_]*.py"):
        for name in imported(path):
            assert not name.startswith(f"workbench.{folder}."), f"{path.name} imports {name}: siblings never meet"


def test_the_folder_of_kernels_hides_no_other_package():
    assert not (ROOT.parent / "kernels" / "__init__.py").exists(), "it would hide the package 'kernels' of Hugging Face"
