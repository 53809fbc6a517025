"""Runs of the shipped notebooks that are short: their parameters, and how many figures they leave behind."""

import ast
from pathlib import Path
from typing import Any

import nbformat

from workbench.app.console.options import parse

NOTEBOOKS = sorted((Path(__file__).resolve().parents[1] / "notebooks").glob("*.ipynb"))
NAMES = [path.stem for path in NOTEBOOKS]
TINY = {  # parameters that make a run short
    "00_start_here": """sample=0 passages=2 select=first_k selectors=["none","first_k"]
        ratios=[0.25,0.5] orders=2 max_new_tokens=2""",
    "01_masks": "passages=2 max_new_tokens=2",
    "02_positions": "passages=2 samples=2 distances=[0,3,64] keys=8",
    "03_reuse": "passages=2 samples=4 lengths=[64,96] repeats=2 max_new_tokens=2",
    "04_block_finetuning": "passages=2 samples=4 max_new_tokens=2",
    "05_beyond_rag": """requests=4 shots=[1,2] conversations=1 turns=4 memory=2 frames=3 tables=1 repeats=1
        max_new_tokens=2""",
    "06_kv_deviation": "passages=3 samples=3 neighbours=2",
    "07_critical_tokens": "passages=3 samples=3 ratios=[0,0.5,1] max_new_tokens=2",
    "08_recompute_tradeoff": """passages=3 samples=3 selectors=["first_k"] ratios=[0.5] neighbours=1 repeats=1
        max_new_tokens=2""",
    "09_sparse_masks": "passages=2 tile=16 joined=random chunk=64 long=1024 overview=32 frame=8",
    "10_sparse_quality": "passages=3 samples=1 lengths=[128,256] repeats=1",
    "12_real_model": 'data=lab passages=3 samples=2 neighbours=1 selectors=["first_k"] max_new_tokens=2',
    "11_latency": "lengths=[96,128] context=128 ratios=[0,0.15] shares=[0,1] dial=[0.5] repeats=1",
    "13_papers": "",
    "14_store": "requests=24 pool=60 prepared=30 gpu=1.0 lengths=[64,96] repeats=1",
    "15_add_a_method": 'passages=3 samples=3 others=["random"] ratio=0.5',
}
TINY = {name: parse(text.split()) for name, text in TINY.items()}
FIGURES = {"00_start_here": 1, "01_masks": 6, "02_positions": 7, "03_reuse": 6, "04_block_finetuning": 7}
FIGURES |= {"05_beyond_rag": 9, "06_kv_deviation": 5, "07_critical_tokens": 4, "08_recompute_tradeoff": 9}
FIGURES |= {"09_sparse_masks": 8, "10_sparse_quality": 10, "11_latency": 7, "12_real_model": 11, "13_papers": 1}
FIGURES |= {"14_store": 11, "15_add_a_method": 2}
EXPLORED = [path.stem for path in NOTEBOOKS if "_explorer(" in path.read_text()]


def explorers_of(name: str, model: str) -> Any:
    """A short run of a notebook's explorers on a model."""
    written = nbformat.read(NOTEBOOKS[NAMES.index(name)], as_version=4)
    given = {"model": model, **TINY[name]}
    parameters = next(cell for cell in written.cells if cell.cell_type == "code")
    if "\ntuned:" in parameters.source:
        given["tuned"] = model
    parameters.source += "".join(f"\n{key} = {value!r}" for key, value in given.items())
    written.cells = of_explorers(written.cells)
    return written


def of_explorers(cells: list[Any]) -> list[Any]:
    """The cells that a notebook's explorers need, without the figures that these draw."""
    kept: list[Any] = []
    wanted = {"notebook"}
    for cell in reversed([cell for cell in cells if cell.cell_type == "code"]):
        body = ast.parse(cell.source).body
        nodes = [node for part in body for node in ast.walk(part)]
        made = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        made |= {
            name.asname or name.name
            for node in nodes
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in node.names
        }
        if "_explorer(" not in cell.source:
            if not made & wanted:
                continue
            while body and isinstance(body[-1], ast.Expr) and "notebook." not in ast.unparse(body[-1]):
                body.pop()
            cell.source = ast.unparse(ast.Module(body, []))
        wanted |= {node.id for part in body for node in ast.walk(part) if isinstance(node, ast.Name)}
        kept.insert(0, cell)
    return kept
