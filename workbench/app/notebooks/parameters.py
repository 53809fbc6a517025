"""Read and check the parameters that notebooks declare, without importing model or notebook libraries.

They are assigned in the first cell tagged `parameters`, and checked in the code cell after it (`notebook.validate`).
"""

import ast
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from workbench.core.errors import BadInput, did_you_mean, first_line
from workbench.core.utils import json_text


def declared_parameters(path: Path) -> dict[str, str]:
    """Return {parameter: source of its default} of a notebook. Raises BadInput for other files."""
    if path.suffix != ".ipynb" or not path.is_file():
        raise BadInput(f"{path} is no notebook file")
    try:
        lines = [line for cell in _cells(path)[:1] for line in ast.parse(cell).body]
        known = [(line.targets[0], line.value) for line in lines if isinstance(line, ast.Assign)]
        known += [(line.target, line.value) for line in lines if isinstance(line, ast.AnnAssign) and line.value]
        return {target.id: ast.unparse(value) for target, value in known if isinstance(target, ast.Name)}
    except (BadInput, SyntaxError, AttributeError, KeyError, TypeError, ValueError) as problem:
        raise BadInput(f"{path} is no notebook that can be read: {first_line(problem)}") from None


def accepted_parameters(notebooks: Sequence[Path], names: Collection[str]) -> dict[Path, list[str]]:
    """Return which of the names each notebook declares. Raises BadInput for a name that none declares."""
    known = {path: declared_parameters(path).keys() - {"output"} for path in notebooks}
    every = sorted(set().union(*known.values()))
    if odd := [name for name in names if name not in every]:
        listed = ", ".join(every) or "none"
        raise BadInput(f"unknown parameter {odd[0]}: the notebooks take {listed}{did_you_mean(odd[0], every)}")
    return {path: [name for name in names if name in known[path]] for path in notebooks}


def check(path: Path, parameters: Mapping[str, Any]) -> None:
    """Execute the cell tagged `parameters` and the validating cell after it; its BadInput reaches the caller."""
    namespace: dict[str, Any] = {}
    try:
        for number, cell in enumerate(_cells(path)[:2]):
            exec(cell, namespace)
            namespace |= {} if number else parameters
    except BadInput:
        raise
    except Exception:  # other failures show when the notebook runs
        return


def _cells(path: Path) -> list[str]:
    """Return the sources of the code cells from the first tagged `parameters` on."""
    cells = [cell for cell in json_text.read_json(path)["cells"] if cell["cell_type"] == "code"]
    tagged = [at for at, cell in enumerate(cells) if "parameters" in cell["metadata"].get("tags", [])]
    return ["".join(cell["source"]) for cell in cells[tagged[0] :]] if tagged else []
